"""Random damage of the file of a queue, and what is delivered from it afterwards.

    python -m tests.support.damage [COUNT [SEED]]

damages copies of a file COUNT times and prints what became of the messages.
"""

from __future__ import annotations

import logging
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ccagent.config.configuration import OutboxSettings
from ccagent.queue.queue import Queue, make_directory_name
from ccagent.queue.segment import WAITING, find_owner, parse_segment
from ccagent.queue.sink import Sink
from ccagent.records.message import Message
from ccagent.transports.base import SinkSettings, Transport

_DIRECTORY = make_directory_name("backend")
REMOVED = 10
REJECTED = 2
SENT = 60
_SIZES = (10, 300, 3000, 4050, 9000, 40_000)


class Outcome(NamedTuple):
    """What became of the messages of a damaged file.

    delivered: ids in their order, those of messages queued afterwards included. lost: ids of which
    no byte was hit and which did not arrive all the same. restarts, tracebacks: must be 0.
    """

    delivered: list[str]
    hit: set[str]
    restarts: int
    tracebacks: int
    is_alive: bool

    @property
    def lost(self) -> set[str]:
        """The ids of messages that are undamaged and were not delivered."""
        return set(expected()) - self.hit - set(self.delivered)


class Taker(Transport):
    """Takes everything."""

    def __init__(self) -> None:
        super().__init__(SinkSettings(url="test:"))
        self.taken: list[str] = []

    def send(self, messages: Sequence[Message]) -> None:
        self.taken += [message.id for message in messages]


class Tracebacks(logging.Handler):
    """Counts the log's tracebacks."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.exc_info is not None


def message(number: int) -> Message:
    """Return a message in whose body each 16 bytes occur only once."""
    size = _SIZES[number % len(_SIZES)]
    tags = b"".join(b"<%04d:%08d>%c" % (number, place, 33) for place in range(size // 16))
    kind = ("sample", "job")[number % 2]
    return Message("c", "n", kind, "sonar", 1.5, tags, "", str(number))


def expected() -> list[str]:
    """Return the ids of the messages in an intact file."""
    return [str(number) for number in range(REMOVED + REJECTED, SENT)]


def write_intact(directory: Path, *, is_closed: bool = True) -> None:
    """Write files with messages of many sizes, after some were acknowledged and some refused."""
    queue = Queue("backend", OutboxSettings(directory=str(directory)))
    for number in range(SENT):
        queue.put([message(number)])
    queue.remove([waiting.number for waiting in queue.next_batch(REMOVED)])
    for waiting in queue.next_batch(REJECTED):
        queue.reject(waiting.number, "422")
    if is_closed:
        queue.close()
    else:
        # As after a kill: the unused space is allocated.
        copy = directory.with_name(directory.name + "-copy")
        shutil.copytree(directory, copy)
        queue.close()
        shutil.rmtree(directory)
        copy.rename(directory)


def damage(directory: Path, seed: int) -> set[str]:
    """Damage the files in a directory; return the ids of messages of which bytes are hit."""
    chance = random.Random(seed)
    before = _contents(directory)
    file = chance.choice(sorted((directory / _DIRECTORY).iterdir()))
    content = bytearray(file.read_bytes())
    size = len(content.rstrip(b"\0"))
    for _ in range(chance.choice([1, 1, 1, 5])):
        # One in two hits the header or the first messages.
        place = chance.randrange(min(size, chance.choice([100, 4096, size, size])))
        match chance.randrange(6):
            case 0 | 1 | 2:
                content[place] ^= 1 << chance.randrange(8)
            case 3:
                length = min(chance.choice([8, 200, 5000]), size - place)
                content[place : place + length] = chance.randbytes(length)
            case 4:
                length = min(4096, size - place)
                content[place : place + length] = bytes(length)
            case _:
                other = chance.randrange(size // 4096 + 1) * 4096
                length = min(4096, size - other)
                start = place // 4096 * 4096
                piece = content[other : other + length]
                content[start : start + length] = piece
    if chance.randrange(20) == 0:
        del content[chance.randrange(size) :]
    file.write_bytes(content)
    return hit(before, _contents(directory))


def hit(before: list[bytes], after: list[bytes]) -> set[str]:
    """Return the ids of messages whose record is not what it was."""

    def whole(contents: list[bytes]) -> set[str]:
        owner = find_owner("backend")
        return {
            each.entry.message.id
            for content in contents
            for each in parse_segment(content, owner).messages
            if each.entry is not None and each.state == WAITING
        }

    return whole(before) - whole(after)


def deliver(directory: Path, hit_ids: set[str]) -> Outcome:
    """Open the damaged queue as the daemon does, queue one more message, and send everything."""
    handler = Tracebacks()
    logger = logging.getLogger("ccagent")
    logger.addHandler(handler)
    taker = Taker()
    try:
        where = OutboxSettings(directory=str(directory))
        sink = Sink("backend", SinkSettings(url="test:"), taker, where)
        new = Message("c", "n", "sample", "sonar", 1.5, b"{}", "", "new")
        sink.put(new)
        deadline = time.monotonic() + 60
        while not sink.is_idle and time.monotonic() < deadline:
            time.sleep(0.002)
        is_alive = sink.is_alive
        restarts = sink.counters().restarts
        sink.close()
        sink.join(60)
    finally:
        logger.removeHandler(handler)
    return Outcome(taker.taken, hit_ids, restarts, handler.count, is_alive)


def main() -> None:
    """Damage files and print what became of them."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    logging.getLogger("ccagent").addHandler(logging.NullHandler())
    logging.getLogger("ccagent").propagate = False
    sums: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        for kind, is_closed in (("closed", True), ("killed", False)):
            write_intact(base / kind, is_closed=is_closed)
        for seed in range(first, first + count):
            work = base / "work"
            shutil.copytree(base / ("closed", "killed")[seed % 2], work)
            outcome = deliver(work, damage(work, seed))
            sums["files"] += 1
            sums["messages"] += len(expected())
            sums["messages damaged"] += len(outcome.hit)
            sums["undamaged messages lost"] += len(outcome.lost)
            sums["delivered twice"] += len(outcome.delivered) - len(set(outcome.delivered))
            sums["new messages lost"] += "new" not in outcome.delivered
            sums["tracebacks"] += outcome.tracebacks
            sums["threads lost"] += not outcome.is_alive
            sums["restarts"] += outcome.restarts
            sums["files set aside"] += any(".damaged" in path.name for path in work.rglob("*"))
            if outcome.lost or outcome.tracebacks or "new" not in outcome.delivered:
                print(f"seed {seed}: lost {sorted(outcome.lost)}", file=sys.stderr)
            shutil.rmtree(work)
    for what, number in sums.items():
        print(f"{what:25} {number:8}")
    print(f"{'threads left':25} {threading.active_count() - 1:8}")


def _contents(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((directory / _DIRECTORY).iterdir())]


if __name__ == "__main__":
    main()
