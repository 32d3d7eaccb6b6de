"""Load of a fleet on its brokers: bytes, CPU a message, memory and CPU a connection.

    python benchmarks/fleet.py [bytes] [jetstream] [replicas] [mqtt] [tls]

`bytes`: the size of a sample with sleeping and with working processes, its size on disk in an
outbox and in JetStream, and the effect of compression. `jetstream`, `replicas` (three servers),
`mqtt` (mosquitto, QoS 1, one subscriber): many of ccagent's transports, each with a separate
connection, send samples one by one as nodes do from tick to tick, then 50 at once as after an
outage. `tls`: connections with a handshake. CPU is user and system time of the servers. The senders
run on the same cores, so the rate of messages includes both. The rate of a server on a dedicated
core is one second divided by its CPU a message.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.servers import free_port, server
from ccagent.config.configuration import OutboxSettings, check_sink
from ccagent.queue.queue import Queue
from ccagent.records.message import Message
from ccagent.transports.base import build_transport

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from ccagent.transports.base import Transport

CLUSTER = "fox"
PROCESSES = (0, 100, 1000)
ROUNDS = 20
BATCH = 50
_TICKS = os.sysconf("SC_CLK_TCK")

_WORK = """
import os, time
if not os.getuid():
    os.setuid(1000)
kept = bytearray(3_000_000)
with open("/dev/zero", "rb") as source, open("/dev/null", "wb") as sink:
    while True:
        sink.write(source.read(123_456))
        end = time.process_time() + 0.004
        while time.process_time() < end:
            pass
        time.sleep(2)
"""


class Load(NamedTuple):
    """Number of connections, and their messages."""

    connections: int
    body: bytes


@contextlib.contextmanager
def processes(command: Sequence[str], count: int, seconds: float) -> Generator[None]:
    """Run `count` processes during the context, `sleep` as user 1000, not a system user."""
    kind: dict[str, Any] = {"user": 1000} if command[0] == "sleep" and os.getuid() == 0 else {}
    running = [subprocess.Popen(command, **kind) for _ in range(count)]
    try:
        time.sleep(seconds)
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def sample(*keys: str) -> bytes:
    """Take one sample as `ccagent sample --once` does."""
    command = [sys.executable, "-m", "ccagent", "sample", "--once", "--cluster", CLUSTER]
    for key in ("exclude-system-jobs=true", *keys):
        command += ["--set", key]
    return subprocess.run(command, capture_output=True, check=True).stdout.strip()


def other(body: bytes) -> bytes:
    """Replace all numbers of three digits or more, so that samples do not repeat."""
    return re.sub(rb"[1-9]\d{2,}", lambda m: b"%d" % _number(len(m[0])), body)


def _number(digits: int) -> int:
    return random.randrange(10 ** (digits - 1), 10**digits)  # noqa: S311


def cpu(servers: Sequence[subprocess.Popen[bytes]]) -> float:
    """Return the CPU seconds of the processes."""
    total = 0
    for process in servers:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def memory(servers: Sequence[subprocess.Popen[bytes]]) -> int:
    """Return the resident memory of the processes in KB."""
    total = 0
    for process in servers:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            total += int(line.split()[1]) if line.startswith("VmRSS:") else 0
    return total


def at_once(work: Callable[[int], None], count: int) -> None:
    """Run a function in several threads, and wait for them."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(
    what: str, table: Mapping[str, object], load: Load, servers: Sequence[subprocess.Popen[bytes]]
) -> None:
    """Connect, send messages one by one, then in batches. Print CPU and memory of the servers."""
    before = memory(servers)
    nodes = [f"c{number:05}" for number in range(load.connections)]
    settings = [check_sink({**table}, "backend", "benchmark") for _ in nodes]
    transports: list[Transport] = [build_transport(one) for one in settings]

    def send(number: int, first: int, count: int) -> None:
        messages = [
            Message(CLUSTER, nodes[number], "sample", "sonar", 0.0, load.body, "",
                    f"{nodes[number]}-{first + index}")
            for index in range(count)
        ]  # fmt: skip
        transports[number].send(messages)

    at_once(lambda number: send(number, 0, 1), load.connections)
    time.sleep(1)
    connected = memory(servers) - before
    for name, rounds, batch in (("one by one", ROUNDS, 1), (f"{BATCH} at once", 2, BATCH)):
        first = 1 + 1000 * batch

        def several(number: int, first: int = first, r: int = rounds, b: int = batch) -> None:
            for index in range(r):
                send(number, first + index * b, b)

        begun, used = time.perf_counter(), cpu(servers)
        at_once(several, load.connections)
        seconds, count = time.perf_counter() - begun, load.connections * rounds * batch
        each = (cpu(servers) - used) / count
        print(
            f"{what:22} {name:11} {count / seconds:8,.0f} messages/s with the senders; servers "
            f"{each * 1e6:5.0f} us CPU a message: {1 / each:8,.0f} messages/s a core"
        )
    for transport in transports:
        transport.close()
    print(f"{what:22} {connected / load.connections:8.0f} KB a connection")


async def _ask(port: int, **stream: Any) -> Any:
    import nats

    client = await cast("Any", nats).connect(f"nats://127.0.0.1:{port}")
    try:
        if "subjects" in stream:
            return await client.jetstream().add_stream(**stream)
        return await client.jetstream().stream_info(stream["name"])
    finally:
        await client.close()


@contextlib.contextmanager
def nats_servers(count: int, directory: str) -> Generator[tuple[list[Any], int]]:
    """Run a server or a cluster. Yield the processes and the first port."""
    ports = [(free_port(), free_port()) for _ in range(count)]
    routes = ", ".join(f'"nats://127.0.0.1:{route}"' for _, route in ports)
    with contextlib.ExitStack() as stack:
        servers: list[Any] = []
        for number, (port, route) in enumerate(ports):
            file = Path(directory, f"nats{number}.conf")
            text = f'listen: "127.0.0.1:{port}"\nserver_name: n{number}\n'
            text += f'jetstream {{ store_dir: "{directory}/n{number}" }}\n'
            if count > 1:
                text += f'cluster {{ name: c, listen: "127.0.0.1:{route}", routes: [{routes}] }}\n'
            file.write_text(text)
            servers.append(stack.enter_context(server(port, "nats-server", "-c", str(file))))
        time.sleep(0.2 if count == 1 else 8)  # until the servers have elected a leader
        yield servers, ports[0][0]


def jetstream(load: Load, directory: str, replicas: int = 1) -> None:
    """Measure a stream on disk."""
    with nats_servers(replicas, directory) as (servers, port):
        asyncio.run(_ask(port, name="fox", subjects=["fox.>"], num_replicas=replicas))
        url = f"nats://127.0.0.1:{port}"
        measure(f"JetStream, {replicas} replica(s)", {"url": url, "jetstream": True}, load, servers)


def mqtt(load: Load, directory: str) -> None:
    """Measure mosquitto at QoS 1, with a subscriber to all messages."""
    port = free_port()
    file = Path(directory, "mosquitto.conf")
    file.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 1000000\n"
    )
    subscribe = ("mosquitto_sub", "-p", str(port), "-q", "1", "-t", "#", "-F", "%l")
    with server(port, "mosquitto", "-c", str(file)) as broker, server(port, *subscribe):
        time.sleep(0.3)
        measure("mosquitto, QoS 1", {"url": f"mqtt://127.0.0.1:{port}"}, load, [broker])


def tls(load: Load, directory: str) -> None:
    """Measure the servers' CPU of TLS handshakes, such as after a restart of the nodes."""
    certificate, key = f"{directory}/server.pem", f"{directory}/server.key"
    for name, kind in (("RSA 2048", ["rsa:2048"]),
                       ("ECDSA P-256", ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"])):  # fmt: skip
        subprocess.run(
            ["openssl", "req", "-x509", "-nodes", "-newkey", *kind, "-keyout", key, "-out",
             certificate, "-subj", "/CN=localhost", "-days", "2"],
            check=True, capture_output=True,
        )  # fmt: skip
        port = free_port()
        file = Path(directory, "tls.conf")
        file.write_text(
            f'listen: "127.0.0.1:{port}"\ntls {{ cert_file: "{certificate}", key_file: "{key}" }}\n'
        )
        context = ssl.create_default_context(cafile=certificate)
        context.check_hostname = False
        with server(port, "nats-server", "-c", str(file)) as process:
            before, used, kept = memory([process]), cpu([process]), list[ssl.SSLSocket]()
            for _ in range(load.connections):
                kept.append(_greeted(port, context))
            each = (cpu([process]) - used) / load.connections
            size = (memory([process]) - before) / load.connections
            for one in kept:
                one.close()
        print(
            f"nats-server, TLS, {name}: {each * 1e3:.2f} ms CPU a connection, {1 / each:,.0f} a "
            f"second and core; {size:.0f} KB each"
        )


def _greeted(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port))
    plain.recv(4096)
    secured = context.wrap_socket(plain)
    secured.sendall(b'CONNECT {"verbose":false,"tls_required":true}\r\nPING\r\n')
    secured.recv(4096)
    return secured


def sizes(directory: str) -> None:
    """Print the size of samples in bytes, in an outbox and in a stream."""
    kinds = {"sleeping": ("sleep", "600"), "working": (sys.executable, "-c", _WORK)}
    bodies: list[bytes] = []
    for kind, command in kinds.items():
        for count in PROCESSES if kind == "sleeping" else PROCESSES[1:2]:
            with processes(command, count, 0.5 if kind == "sleeping" else 15):
                body, rolled = sample(), sample("rollup=true")
            bodies.append(body)
            each = f", {(len(body) - len(bodies[0])) / count:.0f} each" if count else ""
            print(
                f"{count:5} {kind:9} processes: {len(body):7,} B{each}; rolled up {len(rolled)} B"
            )
    body = bodies[-1]
    queue = Queue("fleet", OutboxSettings(directory=directory))
    messages = [
        Message(CLUSTER, "c1-1", "sample", "sonar", 0.0, other(body), "", f"{number:024}")
        for number in range(2000)
    ]
    for message in messages:
        queue.put([message])
    queue.close()
    taken = sum(file.stat().st_size for file in Path(directory).rglob("*.log"))
    print(f"outbox: {taken / 2000:,.0f} B on the disk for a message of {len(body):,} B")
    with nats_servers(1, directory) as (_, port):
        for compression in ("none", "s2"):
            stream = f"fox-{compression}"
            keys: dict[str, Any] = {"name": stream, "subjects": [f"{stream}.>"]}
            asyncio.run(_ask(port, **keys, compression=compression))
            table = {"url": f"nats://127.0.0.1:{port}", "jetstream": True}
            transport = build_transport(check_sink(table, "backend", "benchmark"))
            for begin in range(0, 2000, 100):
                part = messages[begin : begin + 100]
                transport.send([Message(stream, m.node, m.kind, m.format, m.time, m.body, "", m.id)
                                for m in part])  # fmt: skip
            transport.close()
            state = asyncio.run(_ask(port, name=stream)).state
            time.sleep(12)  # blocks are compressed when they are full or idle for some time
            places = Path(directory, "n0").rglob(f"{stream}/msgs/*.blk")
            disk = sum(file.stat().st_size for file in places)
            print(
                f"stream, compression {compression:4}: {state.bytes / 2000:,.0f} B counted, "
                f"{disk / 2000:,.0f} B on the disk a message of {len(body):,} B"
            )


def main() -> None:
    """Run the measurements named on the command line."""
    parser = argparse.ArgumentParser()
    names = ("bytes", "jetstream", "replicas", "mqtt", "tls")
    parser.add_argument("what", nargs="*", default=[], choices=[*names, []])
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--size", type=int, default=8192)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    text = json.dumps({"x": os.urandom(options.size).hex()})[: options.size]
    load = Load(options.connections, text.encode())
    for name in options.what or names:
        with tempfile.TemporaryDirectory() as directory:
            if name == "bytes":
                sizes(directory)
            elif name in {"jetstream", "replicas"}:
                jetstream(load, directory, 1 if name == "jetstream" else 3)
            else:
                {"mqtt": mqtt, "tls": tls}[name](load, directory)


if __name__ == "__main__":
    main()
