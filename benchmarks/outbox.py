"""Cost of the outbox: storing a message, and taking it out again.

    python benchmarks/outbox.py [--messages 20000] [--directory DIR] [--before CHECKOUT] [--full]

Stores messages of 2 KB as an agent does, one at a time, and drains them into a transport that
accepts all. Prints messages per CPU second for both, for both together, and for each durability.
For comparison it prints the disk's time for one write and fsync of the same size. `--before`
measures another checkout in turns with this one, and prints the ratio. `--full` (as root) drains
queues from file systems, tmpfs and ext4, that have no free byte, beside the same with free space.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from ccagent.config.configuration import OutboxSettings
from ccagent.queue.queue import Queue
from ccagent.queue.sender import Sender
from ccagent.records.message import Message
from ccagent.transports.base import SinkSettings, Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZE = 2048
_TURNS = 5


class Everything(Transport):
    """A transport that accepts all messages."""

    def send(self, messages: Sequence[Message]) -> None:
        """Accept the messages."""


def fsync_time(directory: str, count: int) -> float:
    """Return the median seconds of a write and fsync of one message's size."""
    times: list[float] = []
    with open(os.path.join(directory, "fsync"), "wb", buffering=0) as file:
        for _ in range(count):
            begin = time.perf_counter()
            file.write(os.urandom(SIZE))
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def measure(directory: str, count: int) -> dict[str, float]:
    """Return messages per CPU second, and the median microseconds of a put, by name."""
    found: dict[str, float] = {}
    body = os.urandom(SIZE // 2).hex().encode()
    for durability, number in (("process", count), ("power", max(1, count // 20))):
        where = OutboxSettings(
            directory=os.path.join(directory, durability),
            max_bytes=2**40,
            durability="power" if durability == "power" else "process",
        )
        messages = [
            Message("x", "n", "sample", "sonar", 0.0, body, "", f"{index:024}")
            for index in range(number)
        ]
        queue, times = Queue("backend", where), list[float]()
        used = time.process_time()
        for message in messages:
            begin = time.perf_counter()
            queue.put([message])
            times.append(time.perf_counter() - begin)
        put = time.process_time() - used
        sender = Sender("backend", queue, Everything(SinkSettings(url="x:")))
        used = time.process_time()
        sender.send_all()
        drained = time.process_time() - used
        sender.close()
        found[f"{durability}: stored, messages per CPU second"] = number / put
        found[f"{durability}: drained, messages per CPU second"] = number / drained
        found[f"{durability}: both, messages per CPU second"] = number / (put + drained)
        found[f"{durability}: one put, us"] = statistics.median(times) * 1e6
    return found


def drain(directory: str, count: int, *, is_full: bool) -> tuple[float, float]:
    """Drain a queue from a disk with or without a free byte.

    Return messages per second, and per CPU second.
    """
    settings = OutboxSettings(directory=directory, max_bytes=2**40)
    queue = Queue("full" if is_full else "free", settings)
    body = os.urandom(SIZE // 2).hex().encode()
    messages = [
        Message("x", "n", "sample", "sonar", 0.0, body, "", f"{index:024}")
        for index in range(count)
    ]
    queue.put(messages)
    if is_full:
        with (
            open(os.path.join(directory, "fill"), "wb", buffering=0) as file,
            contextlib.suppress(OSError),
        ):
            while file.write(bytes(4096)):
                pass
    sender = Sender("backend", queue, Everything(SinkSettings(url="x:")))
    begin, used = time.perf_counter(), time.process_time()
    if not sender.send_all() or queue.count(in_memory=True):
        sys.exit("not all was sent from the disk")
    rates = count / (time.perf_counter() - begin), count / (time.process_time() - used)
    sender.close()
    if is_full:
        os.unlink(os.path.join(directory, "fill"))
    return rates


def measure_full_disks(directory: str, count: int) -> None:
    """Print the median rates of draining from a full disk and from one with free space."""
    for kind in ("tmpfs", "ext4"):
        place = os.path.join(directory, kind)
        os.mkdir(place)
        size = count * SIZE * 3
        if kind == "tmpfs":
            mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", place]
        else:
            image = place + ".image"
            with open(image, "wb") as file:
                file.truncate(size)
            subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
            mount = ["mount", "-o", "loop", image, place]
        subprocess.run(mount, check=True)
        try:
            os.chmod(place, 0o700)
            runs = [
                (drain(place, count, is_full=False), drain(place, count, is_full=True))
                for _ in range(_TURNS)
            ]
        finally:
            subprocess.run(["umount", "-l", place], check=True)
        for index, what in enumerate(("second", "CPU second")):
            free, full = (
                statistics.median(run[is_full][index] for run in runs) for is_full in (0, 1)
            )
            print(f"{kind}: drained per {what:31}{full:10,.0f} full, ratio {full / free:.2f}")


def measure_checkout(checkout: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure the code of a checkout in another process."""
    command = [sys.executable, os.path.abspath(__file__), "--json"]
    command += ["--messages", str(options.messages)]
    if options.directory:
        command += ["--directory", options.directory]
    environment = os.environ | {"PYTHONPATH": os.path.join(checkout, "src")}
    done = subprocess.run(command, env=environment, capture_output=True, check=True, cwd="/")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--before", default="")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        if options.json:
            print(json.dumps(measure(directory, options.messages)))
            return
        if options.full:
            measure_full_disks(directory, options.messages)
            return
        few = max(1, options.messages // 100)
        print(f"write and fsync of 2 KB{fsync_time(directory, few) * 1e6:38,.0f} us")
    checkouts = [os.path.dirname(os.path.dirname(os.path.abspath(__file__))), options.before]
    runs: dict[str, list[dict[str, float]]] = {each: [] for each in checkouts if each}
    for _ in range(_TURNS if options.before else 1):
        for checkout, results in runs.items():
            results.append(measure_checkout(checkout, options))
    now, *before = (
        {name: statistics.median(run[name] for run in results) for name in results[0]}
        for results in runs.values()
    )
    for name, value in now.items():
        compared = [f"{old[name]:10,.0f} before, ratio {value / old[name]:.2f}" for old in before]
        print(f"{name:45} {value:10,.0f}", *compared)


if __name__ == "__main__":
    main()
