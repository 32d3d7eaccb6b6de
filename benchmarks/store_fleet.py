"""Cost of a minute of ten thousand nodes, in simulated time at full speed.

    python benchmarks/store_fleet.py http|jetstream|victoria [--nodes 10000] [--minutes 60]

Each node sends a message of 87 lines a minute. `http`: to the embedded store. `jetstream`: to a
stream of nats-server, from which the store receives. `victoria`: to a gateway in front of
VictoriaMetrics. The log is on, and over HTTP tokens are checked. Clients are in this process, and
their CPU is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import nats

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.servers import free_port, server
from benchmarks.store_server import (
    StoreBench,
    cpu_of,
    lines,
    report,
    resident_of,
    store_command,
    token,
)

METRICS = 87
_STREAM = 2 << 30


class Fleet(NamedTuple):
    """The simulated nodes. begin: seconds since 1970."""

    nodes: int
    minutes: int
    begin: int

    def messages(self, minute: int) -> list[bytes]:
        """Return the messages of all nodes for a minute."""
        return [lines(node, minute, self.begin, METRICS) for node in range(self.nodes)]

    def points(self, minutes: int) -> int:
        """Return the number of values in some minutes."""
        return self.nodes * METRICS * minutes


class Costs:
    """CPU and memory of the processes, minute by minute."""

    def __init__(self, fleet: Fleet, processes: dict[str, int]) -> None:
        self._fleet = fleet
        self._processes = processes
        self._begin = self._cpu()
        self._first = self._begin
        self._started = time.monotonic()

    def _cpu(self) -> dict[str, float]:
        return {name: cpu_of(pid) for name, pid in self._processes.items()}

    def minute_is_over(self, minute: int) -> None:
        """After the first minute, report memory and take the baseline of the CPU."""
        if minute == 0:
            self._first = self._cpu()
            self._report_memory(1)

    def _report_memory(self, minutes: int) -> None:
        for name, pid in self._processes.items():
            memory = resident_of(pid)
            each = memory / self._fleet.nodes * 1e3
            report(f"{name}: memory after {minutes} min", f"{memory:,.0f} MB, {each:.0f} kB a node")

    def report(self) -> None:
        """Report all measurements."""
        fleet, end = self._fleet, self._cpu()
        counted = fleet.minutes - 1
        self._report_memory(fleet.minutes)
        for name in self._processes:
            used = end[name] - self._first[name]
            report(f"{name}: CPU of the first minute, new series",
                   f"{self._first[name] - self._begin[name]:.1f} s")  # fmt: skip
            report(f"{name}: CPU of a minute of all nodes", f"{used / counted:.2f} s")
            report(f"{name}: points a CPU second", f"{fleet.points(counted) / used:,.0f}")
            carried = fleet.nodes * 60 * counted / used
            report(f"{name}: nodes that one core carries", f"{carried:,.0f}")
        seconds = time.monotonic() - self._started
        report("time, with the clients on the same cores", f"{seconds:.0f} s")


def measure_http(fleet: Fleet, directory: str) -> None:
    """Measure the embedded store."""
    port, (public, jwt) = free_port(), token()
    Path(directory, "store.toml").write_text(f'jwt-public-key = "{public}"\n')
    with (
        server(port, *store_command(directory, port)) as process,
        StoreBench(process, port, jwt) as bench,
    ):
        costs = Costs(fleet, {"store": process.pid})
        for minute in range(fleet.minutes):
            bench.post(fleet.messages(minute))
            costs.minute_is_over(minute)
        costs.report()


def measure_victoria(fleet: Fleet, directory: str) -> None:
    """Measure a gateway and its engine."""
    port, engine, (public, jwt) = free_port(), free_port(), token()
    Path(directory, "store.toml").write_text(
        f'engine = "victoria-metrics"\nengine-url = "http://127.0.0.1:{engine}"\n'
        f'jwt-public-key = "{public}"\n'
    )
    place = f"127.0.0.1:{engine}"
    command = ("victoria-metrics", f"-storageDataPath={directory}/engine",
               f"-httpListenAddr={place}", "-retentionPeriod=1y", "-loggerLevel=ERROR")  # fmt: skip
    with (
        server(engine, *command) as keeper,
        server(port, *store_command(directory, port)) as process,
        StoreBench(process, port, jwt) as bench,
    ):
        costs = Costs(fleet, {"gateway": process.pid, "VictoriaMetrics": keeper.pid})
        for minute in range(fleet.minutes):
            bench.post(fleet.messages(minute))
            costs.minute_is_over(minute)
        costs.report()


def measure_jetstream(fleet: Fleet, directory: str) -> None:
    """Measure the embedded store behind a stream."""
    port, broker = free_port(), free_port()
    Path(directory, "store.toml").write_text(
        f'[nats]\nurl = "nats://127.0.0.1:{broker}"\n'
        '[[nats.subscriptions]]\nsubject = "fox"\nstream = "fox"\n'
    )
    command = ("nats-server", "-p", str(broker), "-js", "-sd", f"{directory}/nats")
    with server(broker, *command) as stream:
        asyncio.run(add_stream(broker))
        with (
            server(port, *store_command(directory, port)) as process,
            StoreBench(process, port, "x") as bench,
        ):
            costs = Costs(fleet, {"store": process.pid, "nats-server": stream.pid})
            for minute in range(fleet.minutes):
                asyncio.run(publish(broker, fleet.messages(minute)))
                while bench.stored() < fleet.points(minute + 1):
                    time.sleep(0.3)  # each question would cost CPU of the store
                costs.minute_is_over(minute)
            costs.report()


async def add_stream(broker: int) -> None:
    """Create a stream that deletes acknowledged messages."""
    client = await cast("Any", nats).connect(f"nats://127.0.0.1:{broker}")
    await client.jetstream().add_stream(
        name="fox", subjects=["fox"], retention="workqueue", max_bytes=_STREAM
    )
    await client.close()


async def publish(broker: int, messages: list[bytes]) -> None:
    """Publish messages. Wait until the stream has stored them."""
    client = await cast("Any", nats).connect(f"nats://127.0.0.1:{broker}")
    for number, message in enumerate(messages):
        await client.publish("fox", message)
        if number % 500 == 0:
            await client.flush()
    await client.flush()
    await client.close()


def main() -> None:
    """Run the measurement of the command line."""
    parser = argparse.ArgumentParser(description="Measure a fleet of nodes.")
    ways = {"http": measure_http, "jetstream": measure_jetstream, "victoria": measure_victoria}
    parser.add_argument("way", choices=ways)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--minutes", type=int, default=60)
    chosen = parser.parse_args()
    begin = int(time.time()) // 60 * 60 - 7200
    with tempfile.TemporaryDirectory() as directory:
        ways[chosen.way](Fleet(chosen.nodes, chosen.minutes, begin), directory)


if __name__ == "__main__":
    main()
