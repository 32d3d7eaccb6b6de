"""Cost of the outbox: storing a message, and taking it out again.

    python benchmarks/outbox.py [--messages 2000] [--directory DIR]

Prints, for messages of 2 KB, the time of storing a message as an agent does (one at a time), with
each durability. For comparison it prints the disk's time for one write and fsync of the same size.
It also prints the rate of messages to a transport that accepts all messages.
"""

from __future__ import annotations

import argparse
import os
import statistics
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


def put_time(queue: Queue, count: int) -> float:
    """Return the median seconds of storing one message."""
    times: list[float] = []
    for number in range(count):
        message = Message("x", "n", "sample", "sonar", 0.0, os.urandom(SIZE), "", str(number))
        begin = time.perf_counter()
        queue.put([message])
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--directory", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        few = max(1, options.messages // 10)
        print(f"write and fsync of 2 KB      {fsync_time(directory, few) * 1e6:8.0f} us")
        process = OutboxSettings(directory=os.path.join(directory, "process"))
        power = OutboxSettings(directory=os.path.join(directory, "power"), durability="power")
        for where, count in ((process, options.messages), (power, few)):
            durability = where.durability
            queue = Queue("backend", where)
            print(f"store, durability {durability:10} {put_time(queue, count) * 1e6:8.0f} us")
            sender = Sender("backend", queue, Everything(SinkSettings(url="x:")))
            begin = time.perf_counter()
            sender.send_all()
            rate = count / (time.perf_counter() - begin)
            print(f"take out, durability {durability:7} {rate:8.0f} messages/s")
            sender.close()


if __name__ == "__main__":
    main()
