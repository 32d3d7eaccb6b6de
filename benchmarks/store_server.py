"""A metric store in a separate process, and clients that measure it."""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

if TYPE_CHECKING:
    from collections.abc import Iterable

METRICS = 80
CONNECTIONS = 8
_PAGE = os.sysconf("SC_PAGE_SIZE")


def token() -> tuple[str, str]:
    """Return a public key, and a token with all rights."""

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


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process so far, of all its threads."""
    # The clock of a process (CLOCK_PROCESS_CPUTIME_ID of another one): /proc counts in 10 ms.
    return time.clock_gettime((~pid << 3) | 2)


def resident_of(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6


class StoreBench:
    """A store, and connections to it."""

    def __init__(self, process: Any, port: int, jwt: str) -> None:
        self._pid = process.pid
        self._head = f"Host: x\r\nAuthorization: Bearer {jwt}\r\n"
        deadline = time.monotonic() + 300
        while True:  # reading a day takes some time
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
        """Return the CPU seconds of the store so far."""
        return cpu_of(self._pid)

    def resident(self) -> float:
        """Return the resident memory of the store in MB."""
        return resident_of(self._pid)

    def post(self, bodies: Iterable[bytes]) -> float:
        """Send messages over all connections. Return the CPU seconds of the store."""
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
        """Return the number of values stored so far."""
        one = self._sockets[0]
        one.sendall(f"GET /metrics HTTP/1.1\r\n{self._head}\r\n".encode())
        text = _read_answer(one)
        return int(text.partition(b"\nccagent_store_points_total ")[2].split()[0])

    def send_next(self, acknowledged: list[int], begin: int) -> None:
        """Send the next step of each connection's node. Count acknowledged values."""
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
        """Return the number of acknowledged values that the store lacks."""
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
        """Repeat a query. Return CPU in ms, median time in ms, and bytes."""
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
            answer = _read_answer(one)
            if not answer.startswith(b'{"results":['):
                sys.exit(f"the store answered {answer[:200]!r}")
            size = len(answer)
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


def report(name: str, value: str) -> None:
    """Print a row."""
    print(f"{name:58} {value}", flush=True)


def store_command(directory: str, port: int) -> tuple[str, ...]:
    """Return the command line of a store."""
    return ("ccagent", "store", "metrics", "--config", f"{directory}/store.toml", "--data",
            f"{directory}/data", "--listen", f"127.0.0.1:{port}")  # fmt: skip
