"""Rate of draining a backlog, and cost of an idle daemon that is connected to NATS.

    python benchmarks/delivery.py [--messages 100000] [--idle 60] [nats] [mqtt] [http] [idle]

Fills an outbox on disk with messages of 2 KB and drains it into servers on this machine: a file
stream of JetStream (nats-server), MQTT at QoS 1 (mosquitto), and InfluxDB through batches of line
protocol. Each line also has the rate of the transport alone, with the same messages from memory,
and the ratio of the two. The servers share the cores with ccagent.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.servers import free_port, server
from ccagent.config.configuration import OutboxSettings, check_sink
from ccagent.queue.queue import BATCH, Queue
from ccagent.queue.sender import Sender
from ccagent.records.message import Message
from ccagent.transports.base import build_transport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.records.message import Format

SIZE = 2048
LINES = 25
"""Lines of a message of points, which make it about 2 KB, too."""

_INFLUXDB = """
reporting-enabled = false
bind-address = "127.0.0.1:0"
[meta]
  dir = "{directory}/meta"
[data]
  dir = "{directory}/data"
  wal-dir = "{directory}/wal"
[monitor]
  store-enabled = false
[http]
  bind-address = "127.0.0.1:{port}"
  log-enabled = false
"""


def messages(count: int, form: Format) -> list[Message]:
    """Return distinct messages of 2 KB."""
    if form == "line":
        return [
            Message("x", "n", "metrics", form, 0.0, _points(number), "", f"{number:024}")
            for number in range(count)
        ]
    body = os.urandom(SIZE // 2).hex().encode()
    return [
        Message("x", "n", "sample", form, 0.0, body, "", f"{number:024}") for number in range(count)
    ]


def _points(number: int) -> bytes:
    tags = "cluster=fox.educloud.no,hostname=c1-1,type=node"
    return "".join(
        f"metric_{line},{tags} value={number + line / 7} {1_700_000_000 + number}\n"
        for line in range(LINES)
    ).encode()


def measure(what: str, table: Mapping[str, object], count: int, directory: str) -> None:
    """Drain the backlog through the outbox, send the same messages directly, and print rates."""
    settings = check_sink(table, "backend", "benchmark")
    backlog = messages(count, settings.format)
    queue = Queue("backend", OutboxSettings(directory=directory, max_bytes=2**40))
    for begin in range(0, count, BATCH):
        queue.put(backlog[begin : begin + BATCH])
    sender = Sender("backend", queue, build_transport(settings))
    begun, used = time.perf_counter(), time.process_time()
    if not sender.send_all():
        sys.exit(f"{what}: not all was taken")
    rate = count / (time.perf_counter() - begun)
    cpu = (time.process_time() - used) / count
    sender.close()
    transport = build_transport(settings)
    again = messages(count, settings.format)
    begun = time.perf_counter()
    for begin in range(0, count, BATCH):
        transport.send(again[begin : begin + BATCH])
    alone = count / (time.perf_counter() - begun)
    transport.close()
    lines = f", {rate * LINES:9,.0f} lines/s" if settings.format == "line" else ""
    print(
        f"{what:22} {rate:9,.0f} messages/s{lines}, {cpu * 1e6:4.0f} us CPU each; "
        f"without outbox {alone:9,.0f} messages/s, ratio {rate / alone:.2f}"
    )


async def _add_stream(url: str) -> None:
    import nats

    client = await cast("Any", nats).connect(url)
    await client.jetstream().add_stream(name="x", subjects=["x.>"], duplicate_window=0.1)
    await client.close()


def nats_rate(count: int, directory: str) -> None:
    """JetStream."""
    port = free_port()
    url = f"nats://127.0.0.1:{port}"
    with server(port, "nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", directory):
        asyncio.run(_add_stream(url))
        measure("JetStream, file", {"url": url, "jetstream": True}, count, directory)


def mqtt_rate(count: int, directory: str) -> None:
    """MQTT, QoS 1."""
    port = free_port()
    file = Path(directory, "mosquitto.conf")
    file.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    with server(port, "mosquitto", "-c", str(file)):
        measure("MQTT, QoS 1", {"url": f"mqtt://127.0.0.1:{port}"}, count, directory)


def http_rate(count: int, directory: str) -> None:
    """Line protocol by HTTP into InfluxDB."""
    port = free_port()
    file = Path(directory, "influxdb.conf")
    file.write_text(_INFLUXDB.format(directory=directory, port=port))
    with server(port, "influxd", "-config", str(file)):
        url = f"http://127.0.0.1:{port}"
        urlopen(Request(f"{url}/query", b"q=CREATE DATABASE x")).close()  # noqa: S310
        table = {"url": f"{url}/write?db=x&precision=s", "format": "line", "time-limit": "60s"}
        measure("HTTP, line protocol", table, count, directory)


def idle(seconds: float, directory: str) -> None:
    """Run a daemon that is connected to NATS and takes no samples. Print memory and CPU."""
    port = free_port()
    file = Path(directory, "ccagent.toml")
    file.write_text(
        f"""
        [outbox]
        directory = "{directory}/spool"
        [agents.sample]
        every = "1d"
        on-startup = true
        [sinks.backend]
        url = "nats://127.0.0.1:{port}"
        """
    )
    with server(port, "nats-server", "-a", "127.0.0.1", "-p", str(port)):
        command = [sys.executable, "-m", "ccagent", "run", "--config", str(file)]
        process = subprocess.Popen(command)
        try:
            time.sleep(5)
            before = _cpu(process.pid)
            time.sleep(seconds)
            share = (_cpu(process.pid) - before) / seconds
            memory = _status(process.pid, "VmRSS")
        finally:
            process.terminate()
            process.wait()
    print(f"idle daemon with NATS    {memory / 1024:6.1f} MB resident, {share:.3%} of a core")


def _cpu(pid: int) -> float:
    """Return CPU seconds in nanosecond resolution. The ticks of stat are too coarse for idling."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def _status(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    return 0


def main() -> None:
    """Run the measurements named on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=[], choices=["nats", "mqtt", "http", "idle", []])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--directory", default=None)
    options = parser.parse_args()
    rates = {"nats": nats_rate, "mqtt": mqtt_rate, "http": http_rate}
    for name in options.what or [*rates, "idle"]:
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            if name == "idle":
                idle(options.idle, directory)
            else:
                rates[name](options.messages, directory)


if __name__ == "__main__":
    main()
