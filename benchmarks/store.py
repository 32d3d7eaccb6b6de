"""What the metric store costs: CPU of its own process for writing and reading, memory, start.

    python benchmarks/store.py [--nodes 1000] [--steps 30] [--day NODES]
    python benchmarks/store.py --jetstream | --fleet | --kills N

Tokens with roles are checked and the log is on. Clients are in this process; the CPU is that of the
store alone, in user and kernel mode. Beside it stands a plain loop over the same lines (split, look
a key up, store a float in an array), so that machines compare. `--day` measures a whole day of that
many nodes: memory, queries and the time of a start.

`--jetstream`: messages of 80 lines out of a stream, with a server of NATS on this machine.
`--fleet`: 10,000 nodes with 87 metrics, an hour in steps of a minute as fast as it goes.
`--kills`: kill -9 that often under load, and count what was acknowledged and is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import nats
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.servers import free_port, server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

METRICS = 80
FLEET = 10_000, 87, 60
CONNECTIONS = 8
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def token() -> tuple[str, str]:
    """Return a public key, and a token that may do everything."""

    def encoded(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    key = Ed25519PrivateKey.generate()
    text = encoded(b'{"alg":"EdDSA"}') + "." + encoded(b'{"roles":["admin"]}')
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    return public, f"{text}.{encoded(key.sign(text.encode()))}"


def lines(node: int, step: int, begin: int, metrics: int = METRICS) -> bytes:
    """Return a node's message."""
    when = begin + 60 * step
    return "".join(
        f"metric_name_{n:03},cluster=fox,hostname=node{node:04},type=node"
        f" value={(node + 7 * step + n) % 1000 / 4 + n:.2f} {when}\n"
        for n in range(metrics)
    ).encode()


def components(node: int, begin: int, hwthreads: int, steps: range) -> Iterator[bytes]:
    """Yield messages of a node's hwthreads, 10 metrics each."""
    for step in steps:
        yield "".join(
            f"thread_name_{n:03},cluster=fox,hostname=node{node:04},type=hwthread,type-id={thread}"
            f" value={(thread + step + n) % 100 / 4:.2f} {begin + 60 * step}\n"
            for n in range(10)
            for thread in range(hwthreads)
        ).encode()


class StoreBench:
    """A store, and connections to it."""

    def __init__(self, process: Any, port: int, jwt: str) -> None:
        self._pid = process.pid
        self._head = f"Host: x\r\nAuthorization: Bearer {jwt}\r\n"
        deadline = time.monotonic() + 300
        while True:  # a day takes a while to be read
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            one.close()

    def cpu(self) -> float:
        """Return the CPU seconds of the store until now."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def resident(self) -> float:
        """Return the resident memory of the store in MB."""
        return int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * _PAGE / 1e6

    def post(self, bodies: Iterable[bytes]) -> float:
        """Send messages over all connections; return the CPU seconds of the store."""
        begin = self.cpu()
        waiting: list[bytes] = []
        for body in bodies:
            head = f"POST /api/write/ HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
            waiting.append(head.encode() + body)
            if len(waiting) == CONNECTIONS:
                self._exchange(waiting)
                waiting.clear()
        self._exchange(waiting)
        return self.cpu() - begin

    def _exchange(self, requests: list[bytes]) -> None:
        used = list(zip(self._sockets, requests, strict=False))
        for one, request in used:
            one.sendall(request)
        for one, _ in used:
            answer = one.recv(65536)
            if not answer.startswith(b"HTTP/1.1 200"):
                sys.exit(f"the store answered {answer!r}")

    def stored(self) -> int:
        """Return the number of values that the store has taken."""
        one = self._sockets[0]
        one.sendall(f"GET /metrics HTTP/1.1\r\n{self._head}\r\n".encode())
        text = _read_answer(one)
        return int(text.partition(b"\nccagent_store_points_total ")[2].split()[0])

    def send_next(self, acknowledged: list[int], begin: int) -> None:
        """Send the next step of each connection's node, and count what is acknowledged."""
        for node, one in enumerate(self._sockets):
            body = lines(node, acknowledged[node], begin)
            head = f"POST /api/write/ HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
            one.sendall(head.encode() + body)
        failed: OSError | None = None
        for node, one in enumerate(self._sockets):
            try:
                answer = one.recv(65536)
            except OSError as error:
                failed = error
                continue
            if answer.startswith(b"HTTP/1.1 200"):
                acknowledged[node] += 1
            else:
                failed = OSError("no answer")
        if failed is not None:
            raise failed

    def count_missing(self, acknowledged: list[int], begin: int) -> int:
        """Return how many acknowledged values the store does not have."""
        missing = 0
        for node, steps in enumerate(acknowledged):
            queries = [
                {"metric": f"metric_name_{n:03}", "host": f"node{node:04}"} for n in range(METRICS)
            ]
            body = {"cluster": "fox", "from": begin, "to": begin + 60 * steps, "queries": queries}
            text = json.dumps(body)
            one = self._sockets[0]
            head = f"GET /api/query/ HTTP/1.1\r\n{self._head}Content-Length: {len(text)}\r\n\r\n"
            one.sendall((head + text).encode())
            for n, found in enumerate(json.loads(_read_answer(one))["results"]):
                values: list[float] = found[0]["data"] if found else []
                expected = [(node + 7 * step + n) % 1000 / 4 + n for step in range(steps)]
                right = sum(a == b for a, b in zip(expected, values, strict=False))
                missing += steps - right + abs(len(values) - steps)
        return missing

    def query(self, body: dict[str, Any], rounds: int) -> tuple[float, float, int]:
        """Ask the same again and again; return ms of CPU, median ms of time, bytes."""
        text = json.dumps(body)
        request = (
            f"GET /api/query/ HTTP/1.1\r\n{self._head}Content-Length: {len(text)}\r\n\r\n{text}"
        ).encode()
        one, size = self._sockets[0], 0
        times: list[float] = []
        begin = self.cpu()
        for _ in range(rounds):
            start = time.perf_counter()
            one.sendall(request)
            size = len(_read_answer(one))
            times.append(time.perf_counter() - start)
        return (self.cpu() - begin) / rounds * 1e3, sorted(times)[rounds // 2] * 1e3, size


def _read_answer(one: socket.socket) -> bytes:
    found = b""
    while b"\r\n\r\n" not in found:
        found += one.recv(1 << 20)
    head, _, body = found.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += one.recv(1 << 20)
    return body


def plain_loop(bodies: list[bytes]) -> float:
    """Return the points a CPU second of the simplest loop that stores values."""
    keys: dict[bytes, int] = {}
    values = np.zeros(len(bodies) * METRICS)
    begin = time.process_time()
    for body in bodies:
        for line in body.split(b"\n"):
            if line:
                key, value, when = line.split(b" ")
                values[keys.setdefault(key, len(keys))] = float(value[6:])
                int(when)
    return len(bodies) * METRICS / (time.process_time() - begin)


def report(name: str, value: str) -> None:
    """Print a row."""
    print(f"{name:58} {value}", flush=True)


def measure_writing(bench: StoreBench, nodes: int, steps: int, begin: int) -> None:
    """Measure POSTs of one node and of many, and the memory that values take."""
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
        if step >= steps + 2:  # the first two teach it the shape
            used, count = used + spent, count + len(bodies) * 100 * METRICS
    report("POSTs of 8,000 lines, points a CPU second", f"{count / used:,.0f}")
    late = [lines(node, step, begin - 3600) for step in range(5) for node in range(nodes)]
    used = bench.post(late)
    report("late POSTs of 80 lines, points a CPU second", f"{len(late) * METRICS / used:,.0f}")


def measure_reading(bench: StoreBench, begin: int) -> None:
    """Measure queries of a day."""
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

    for name, asked in (
        ("query of 4 nodes x 10 metrics x 1 day", queries("metric", 0)),
        ("statistics only", queries("metric", 0) | {"with-data": False}),
        ("aggregated from 4 hwthreads", queries("thread", 9000)),
        ("aggregated from 72 hwthreads", queries("thread", 9100)),
        ("resolution 600", queries("metric", 0, resolution=600)),
    ):
        cpu, median, size = bench.query(asked, 100)
        report(f"{name}, CPU", f"{cpu:.1f} ms (median {median:.1f} ms, {size:,} bytes)")


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
        measure_reading(bench, begin)
        process.send_signal(signal.SIGKILL)
        process.wait()
    start = time.monotonic()
    with server(port, *command) as process, StoreBench(process, port, jwt) as bench:
        report("start with that day", f"{time.monotonic() - start:.1f} s, CPU {bench.cpu():.1f} s")


def measure_fleet(directory: str) -> None:
    """Measure an hour of many nodes, each with its own messages."""
    nodes, metrics, steps = FLEET
    port, (public, jwt) = free_port(), token()
    Path(directory, "store.toml").write_text(f'jwt-public-key = "{public}"\n')
    begin = int(time.time()) // 60 * 60 - 7200
    with (
        server(port, *store_command(directory, port)) as process,
        StoreBench(process, port, jwt) as bench,
    ):
        start, used = time.monotonic(), 0.0
        for step in range(steps):
            used += bench.post(lines(node, step, begin, metrics) for node in range(nodes))
            if step in {0, steps - 1}:
                memory = bench.resident()
                report(
                    f"memory after step {step + 1} of {nodes * metrics:,} series",
                    f"{memory:.0f} MB, {memory / nodes * 1e3:.0f} kB a node",
                )
        points = nodes * metrics * steps
        report("points a CPU second", f"{points / used:,.0f}")
        report("time with the clients on the same cores", f"{time.monotonic() - start:.0f} s")
        report("CPU of a minute of all nodes", f"{used / steps:.2f} s")
        report("nodes that one core carries", f"{nodes * 60 * steps / used:,.0f}")


def measure_jetstream(nodes: int, steps: int, directory: str) -> None:
    """Measure messages out of a stream."""
    port, broker = free_port(), free_port()
    begin = int(time.time()) // 60 * 60 - 7200
    Path(directory, "store.toml").write_text(
        f'[nats]\nurl = "nats://127.0.0.1:{broker}"\n'
        '[[nats.subscriptions]]\nsubject = "fox"\nstream = "fox"\n'
    )
    command = ("nats-server", "-p", str(broker), "-js", "-sd", f"{directory}/nats")
    with server(broker, *command):
        asyncio.run(fill_stream(broker, nodes, steps, begin))
        with (
            server(port, *store_command(directory, port)) as process,
            StoreBench(process, port, "x") as bench,
        ):
            count, used = nodes * (steps - 1) * METRICS, 0.0
            while bench.stored() < nodes * METRICS:
                time.sleep(0.01)
            first, used = bench.stored(), bench.cpu()
            while bench.stored() < nodes * steps * METRICS:
                time.sleep(0.01)
            count, used = bench.stored() - first, bench.cpu() - used
            report("JetStream messages of 80 lines, points a CPU second", f"{count / used:,.0f}")


async def fill_stream(broker: int, nodes: int, steps: int, begin: int) -> None:
    """Publish the messages of all nodes."""
    client = await cast("Any", nats).connect(f"nats://127.0.0.1:{broker}")
    await client.jetstream().add_stream(name="fox", subjects=["fox"])
    for step in range(steps):
        for node in range(nodes):
            await client.publish("fox", lines(node, step, begin))
        await client.flush()
    await client.close()


def measure_kills(kills: int, directory: str) -> None:
    """Kill the store under load of one connection a node, and look for what is missing."""
    port, (public, jwt) = free_port(), token()
    Path(directory, "store.toml").write_text(f'retention = "30d"\njwt-public-key = "{public}"\n')
    begin = int(time.time()) // 60 * 60 - 25 * 86400
    acknowledged = [0] * CONNECTIONS
    longest, points, busy, missing = 0.0, 0, 0.0, 0
    for turn in range(kills + 1):
        start = time.monotonic()
        with (
            server(port, *store_command(directory, port)) as process,
            StoreBench(process, port, jwt) as bench,
        ):
            longest = max(longest, time.monotonic() - start)
            if turn == kills:
                missing = bench.count_missing(acknowledged, begin)
                break
            start = time.monotonic()
            end = start + 0.3 + 0.05 * (turn % 7)
            killer = threading.Timer(end - start, process.kill)
            killer.start()
            points -= sum(acknowledged)
            with contextlib.suppress(OSError):
                while True:
                    bench.send_next(acknowledged, begin)
            points += sum(acknowledged)
            busy += time.monotonic() - start
            killer.join()
    report(f"acknowledged POSTs, {kills} kills", f"{sum(acknowledged):,}")
    report("points a second under the load", f"{points * METRICS / busy:,.0f}")
    report("values missing or wrong", f"{missing:,}")
    report("longest start", f"{longest:.1f} s")


def store_command(directory: str, port: int) -> tuple[str, ...]:
    """Return the command line of a store."""
    return ("ccagent", "store", "metrics", "--config", f"{directory}/store.toml", "--data",
            f"{directory}/data", "--listen", f"127.0.0.1:{port}")  # fmt: skip


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure the metric store.")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--day", type=int, default=100)
    parser.add_argument("--jetstream", action="store_true")
    parser.add_argument("--fleet", action="store_true")
    parser.add_argument("--kills", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if chosen.jetstream:
            measure_jetstream(chosen.nodes, chosen.steps, directory)
        elif chosen.fleet:
            measure_fleet(directory)
        elif chosen.kills:
            measure_kills(chosen.kills, directory)
        else:
            measure(chosen.nodes, chosen.steps, chosen.day, directory)


if __name__ == "__main__":
    main()
