"""Cost of the metric store: CPU of its process for writing and reading, memory, start.

    python benchmarks/store.py [--nodes 1000] [--steps 30] [--day NODES]
    python benchmarks/store.py --traffic all|ccagent|collector|random|new|large|nats
    python benchmarks/store.py --restart

Tokens with roles are checked, and the log is on. Clients are in this process; CPU is user and
system time of the store alone. For comparison of machines, a plain loop over the same lines (split,
look a key up, store a float in an array) is measured. `--day` measures a whole day of that many
nodes: memory, queries and the time of a start.

`store_fleet.py` measures ten thousand nodes, `store_kills.py` kill -9, and `store_checkpoints.py`
the delay of requests by a checkpoint.
"""

from __future__ import annotations

import argparse
import random
import signal
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.servers import free_port, server
from benchmarks.store_server import METRICS, StoreBench, lines, report, store_command, token
from tests.support.collector_traffic import collector_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEED = 34


def components(node: int, begin: int, hwthreads: int, steps: range) -> Iterator[bytes]:
    """Yield messages of a node's hwthreads, 10 metrics each."""
    for step in steps:
        yield "".join(
            f"thread_name_{n:03},cluster=fox,hostname=node{node:04},type=hwthread,type-id={thread}"
            f" value={(thread + step + n) % 100 / 4:.2f} {begin + 60 * step}\n"
            for n in range(10)
            for thread in range(hwthreads)
        ).encode()


class PlainLoop:
    """The simplest loop that stores values: split, look the key up, store a float."""

    def __init__(self) -> None:
        self._keys: dict[bytes, int] = {}
        self._values = np.zeros(10_000_000)

    def take(self, bodies: list[bytes]) -> float:
        """Store the lines of messages. Return the CPU seconds."""
        keys, values = self._keys, self._values
        begin = time.process_time()
        for body in bodies:
            for line in body.split(b"\n"):
                if line:
                    key, value, when = line.split(b" ")
                    values[keys.setdefault(key, len(keys))] = float(value[6:].rstrip(b"iu"))
                    int(when)
        return time.process_time() - begin


def plain_loop(bodies: list[bytes]) -> float:
    """Return the points a CPU second of the plain loop."""
    return sum(body.count(b"\n") for body in bodies) / PlainLoop().take(bodies)


def ccagent_steps(nodes: int, begin: int, steps: int) -> Iterator[list[bytes]]:
    """Yield the messages of each step as ccagent sends them: one order, floats, seconds."""
    for step in range(steps):
        yield [lines(node, step, begin) for node in range(nodes)]


def random_steps(nodes: int, begin: int, steps: int) -> Iterator[list[bytes]]:
    """Yield the messages of each step in random order, most of the lines at a time."""
    chosen = random.Random(SEED)  # noqa: S311 - reproducible, not secret
    for bodies in ccagent_steps(nodes, begin, steps):
        found: list[bytes] = []
        for body in bodies:
            kept = body.splitlines(keepends=True)
            found.append(b"".join(chosen.sample(kept, chosen.randint(len(kept) // 2, len(kept)))))
        yield found


def collector_steps(nodes: int, begin: int, steps: int) -> Iterator[list[bytes]]:
    """Yield the messages of each step as cc-metric-collector sends them: 980 lines a node."""
    for step in range(steps):
        yield [
            body
            for node in range(max(1, nodes // 10))
            for body in collector_messages(f"node{node:04}", begin + 60 * step, SEED)
        ]


def large_steps(nodes: int, begin: int, steps: int) -> Iterator[list[bytes]]:
    """Yield messages of 8,000 lines: those of 100 nodes together."""
    for bodies in ccagent_steps(max(100, nodes), begin, steps):
        yield [b"".join(bodies[first : first + 100]) for first in range(0, len(bodies) - 99, 100)]


TRAFFIC = {
    "ccagent": ccagent_steps, "collector": collector_steps, "random": random_steps,
    "new": ccagent_steps, "large": large_steps, "nats": ccagent_steps,
}  # fmt: skip
"""Messages of each step by kind of traffic. Of `new`, only the first step is measured."""

_BETWEEN = 40
"""Messages after which the plain loop takes the same ones."""

_BETWEEN_NATS = 400
"""The same over NATS, without answers: asking how many values are stored costs CPU as well."""

_QUIET = 0.05
"""Seconds without CPU time after which the store has probably received all messages."""

_WARM = 4
"""Steps before the measured ones: the store learns the keys, and the order of repeated messages."""


class NatsPublisher:
    """A publisher of messages to a store that subscribes to them, without acknowledgements."""

    def __init__(self, bench: StoreBench, port: int, first: bytes) -> None:
        """Send the first message until the store has subscribed."""
        self._bench = bench
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(b'CONNECT {"verbose":false}\r\n')
        while not bench.stored():
            self._publish([first])
            time.sleep(_QUIET)

    def post(self, bodies: list[bytes]) -> float:
        """Send messages, and wait until all are stored. Return the CPU seconds of the store."""
        wanted = self._bench.stored() + sum(body.count(b"\n") for body in bodies)
        begin = used = self._bench.cpu()
        self._publish(bodies)
        while True:
            time.sleep(_QUIET)
            before, used = used, self._bench.cpu()
            if used == before and self._bench.stored() >= wanted:
                return used - begin

    def _publish(self, bodies: list[bytes]) -> None:
        self._socket.sendall(b"".join(b"PUB fox %d\r\n%b\r\n" % (len(one), one) for one in bodies))


def measure_traffic(kinds: list[str], nodes: int, steps: int, directory: str) -> None:
    """Print how many lines a CPU second the store takes, as a ratio to the plain loop."""
    (public, jwt), now = token(), int(time.time()) // 60 * 60
    for kind in kinds:
        port = free_port()
        Path(directory, kind).mkdir()
        settings, broker = f'jwt-public-key = "{public}"\n', free_port()
        if kind == "nats":
            settings += f'[nats]\nurl = "nats://127.0.0.1:{broker}"\n'
            settings += '[[nats.subscriptions]]\nsubject = "fox"\n'
        Path(directory, kind, "store.toml").write_text(settings)
        command = store_command(f"{directory}/{kind}", port)
        with ExitStack() as stack:
            if kind == "nats":
                stack.enter_context(server(broker, "nats-server", "-p", str(broker)))
            process = stack.enter_context(server(port, *command))
            bench = stack.enter_context(StoreBench(process, port, jwt))
            post: Callable[[list[bytes]], float] = bench.post
            between = _BETWEEN
            if kind == "nats":
                first = lines(0, 0, now - 86400)
                post, between = NatsPublisher(bench, broker, first).post, _BETWEEN_NATS
            # The plain loop runs between the messages: other work on the machine slows both.
            plain, count, used, spent = PlainLoop(), 0, 0.0, 0.0
            warm = 0 if kind == "new" else _WARM
            total = 1 if kind == "new" else warm + steps
            for number, bodies in enumerate(TRAFFIC[kind](nodes, now - 60 * total, total)):
                for begin in range(0, len(bodies), between):
                    some = bodies[begin : begin + between]
                    of_store, of_loop = post(some), plain.take(some)
                    if number >= warm:
                        count += sum(body.count(b"\n") for body in some)
                        used, spent = used + of_store, spent + of_loop
            report(
                f"{kind}: lines a CPU second; times the plain loop's {count / spent:,.0f}",
                f"{count / used:,.0f}; {spent / used:.2f}",
            )


def measure_restart(nodes: int, steps: int, directory: str) -> None:
    """Print how many values a CPU second the store reads from its log at a start."""
    (public, jwt), now, port = token(), int(time.time()) // 60 * 60, free_port()
    Path(directory, "store.toml").write_text(f'jwt-public-key = "{public}"\n')
    for kind in ("ccagent", "collector", "random"):
        command, stored = store_command(directory, port), 0
        with server(port, *command) as process, StoreBench(process, port, jwt) as bench:
            empty = bench.cpu()
            for bodies in TRAFFIC[kind](nodes, now - 60 * steps, steps):
                bench.post(bodies)
            stored = bench.stored()
            process.send_signal(signal.SIGKILL)
            process.wait()
        with server(port, *command) as process, StoreBench(process, port, jwt) as bench:
            used = bench.cpu()
        report(
            f"restart, {kind}: {stored:,} values; CPU, of which without values",
            f"{used:.2f} s, {empty:.2f} s; {stored / used:,.0f} values a CPU second",
        )
        Path(directory, "data").rename(f"{directory}/{kind}")


def measure_writing(bench: StoreBench, nodes: int, steps: int, begin: int) -> None:
    """Measure POSTs of one node and of many nodes, and the memory of values."""
    report("memory when empty", f"{bench.resident():.0f} MB")
    bench.post(lines(node, 0, begin) for node in range(nodes))
    report(f"memory after 1 step of {nodes * METRICS:,} series", f"{bench.resident():.0f} MB")
    bench.post(lines(node, 1, begin) for node in range(nodes))
    used = 0.0
    for step in range(2, steps):
        used += bench.post([lines(node, step, begin) for node in range(nodes)])
    count = nodes * METRICS * (steps - 2)
    report("POSTs of 80 lines, points a CPU second", f"{count / used:,.0f}")
    report(f"memory after {steps} steps", f"{bench.resident():.0f} MB")
    used, count = 0.0, 0
    for step in range(steps, steps + 12):
        bodies = [
            b"".join(lines(node, step, begin) for node in range(first, first + 100))
            for first in range(0, nodes - 99, 100)
        ]
        spent = bench.post(bodies)
        if step >= steps + 2:  # the store learns the message's template from the first two
            used, count = used + spent, count + len(bodies) * 100 * METRICS
    report("POSTs of 8,000 lines, points a CPU second", f"{count / used:,.0f}")
    late = [lines(node, step, begin - 3600) for step in range(5) for node in range(nodes)]
    used = bench.post(late)
    report("late POSTs of 80 lines, points a CPU second", f"{len(late) * METRICS / used:,.0f}")


def measure_reading(bench: StoreBench, begin: int, nodes: int) -> None:
    """Measure queries of a day, and the memory of statistics of all blocks of the nodes."""
    for thread_count, node in ((4, 9000), (72, 9100)):
        for number in range(4):
            bench.post(components(node + number, begin, thread_count, range(1440)))
    body: dict[str, Any] = {"cluster": "fox", "from": begin, "to": begin + 86400}

    def queries(metric: str, first: int, **more: Any) -> dict[str, Any]:
        found = [
            {"metric": f"{metric}_name_{n:03}", "host": f"node{node:04}", **more}
            for node in range(first, first + 4)
            for n in range(10)
        ]
        return body | {"queries": found}

    spent: dict[str, float] = {}
    for name, asked in (
        ("query of 4 nodes x 10 metrics x 1 day", queries("metric", 0)),
        ("statistics only", queries("metric", 0) | {"with-data": False}),
        ("aggregated from 4 hwthreads", queries("thread", 9000)),
        ("aggregated from 72 hwthreads", queries("thread", 9100)),
        ("resolution 600", queries("metric", 0, resolution=600)),
    ):
        cpu, median, size = bench.query(asked, 100)
        spent[name] = cpu
        report(f"{name}, CPU", f"{cpu:.1f} ms (median {median:.1f} ms, {size:,} bytes)")
    report(
        "resolution 600, times statistics only",
        f"{spent['resolution 600'] / spent['statistics only']:.1f}",
    )
    before = bench.resident()
    for node in range(nodes):
        host = {"host": f"node{node:04}"}
        alone = [{"metric": f"metric_name_{n:03}", **host} for n in range(METRICS)]
        bench.query(body | {"queries": alone, "with-data": False}, 1)
    report("memory of the statistics of all series", f"{bench.resident() - before:.1f} MB")


def measure(nodes: int, steps: int, day: int, directory: str) -> None:
    """Measure two stores, one after the other."""
    port, (public, jwt) = free_port(), token()
    Path(directory, "store.toml").write_text(f'jwt-public-key = "{public}"\n')
    command = store_command(directory, port)
    now = int(time.time()) // 60 * 60
    with server(port, *command) as process, StoreBench(process, port, jwt) as bench:
        measure_writing(bench, nodes, steps, now - 7200)
    bodies = [lines(node, 0, now) for node in range(nodes)]
    report("plain loop (parsing alone), points a CPU second", f"{plain_loop(bodies):,.0f}")
    Path(directory, "data").rename(f"{directory}/first")
    begin = now - 86400
    with server(port, *command) as process, StoreBench(process, port, jwt) as bench:
        for step in range(1440):
            bench.post(lines(node, step, begin) for node in range(day))
        report(f"memory after a day of {day * METRICS:,} series", f"{bench.resident():.0f} MB")
        measure_reading(bench, begin, day)
        process.send_signal(signal.SIGKILL)
        process.wait()
    start = time.monotonic()
    with server(port, *command) as process, StoreBench(process, port, jwt) as bench:
        report("start with that day", f"{time.monotonic() - start:.1f} s, CPU {bench.cpu():.1f} s")


def main() -> None:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description="Measure the metric store.")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--day", type=int, default=100)
    parser.add_argument("--traffic", choices=[*TRAFFIC, "all"], help="measure only this traffic")
    parser.add_argument("--restart", action="store_true", help="measure only the start")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if chosen.traffic:
            kinds = [*TRAFFIC] if chosen.traffic == "all" else [chosen.traffic]
            measure_traffic(kinds, chosen.nodes, chosen.steps, directory)
            return
        if chosen.restart:
            measure_restart(chosen.nodes, chosen.steps, directory)
            return
        measure(chosen.nodes, chosen.steps, chosen.day, directory)


if __name__ == "__main__":
    main()
