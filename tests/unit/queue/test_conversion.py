"""The SQLite file of version 1.0, converted into segments at the first start."""

from __future__ import annotations

import fcntl
import sqlite3
import struct
import zlib
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from ccagent.config.configuration import OutboxSettings
from ccagent.machine.clock import Clock
from ccagent.queue.queue import Queue
from ccagent.queue.segment_directory import read_files
from ccagent.records.message import Message

# The schema of version 1.0.
SCHEMA = """
CREATE TABLE messages (number INTEGER PRIMARY KEY, kind TEXT, entry BLOB);
CREATE TABLE dead_letters (
    number INTEGER PRIMARY KEY AUTOINCREMENT, rejected REAL, reason TEXT, entry BLOB);
CREATE TABLE state (
    next INTEGER, moment BLOB, messages INTEGER, bytes INTEGER, letters INTEGER,
    letter_bytes INTEGER, dropped INTEGER);
PRAGMA user_version = 2;
"""


def stored(name: str) -> bytes:
    message = Message("c", "n", "sample", "sonar", 1.5, b"{}" * 500, "", name)
    content = msgspec.msgpack.encode([1000.0, 5.0, message_as_list(message)])
    return struct.pack("<4sII", b"\xccQ\r\n", len(content), zlib.crc32(content)) + content


def message_as_list(message: Message) -> dict[str, object]:
    return msgspec.structs.asdict(message)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "backend.outbox"
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(SCHEMA)
        for number in range(300):
            database.execute(
                "INSERT INTO messages (kind, entry) VALUES ('c.sample', ?)", (stored(str(number)),)
            )
        database.execute("UPDATE messages SET entry = NULL WHERE number = 8")
        database.execute(
            "INSERT INTO dead_letters (rejected, reason, entry) VALUES (9, '422', ?)",
            (stored("dead"),),
        )
    (tmp_path / "backend.outbox.repair").touch()
    return path


class _Stopped(Clock):
    """A clock that is set by hand."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def settings(path: Path) -> OutboxSettings:
    return OutboxSettings(directory=str(path.parent))


def drained(queue: Queue) -> list[str]:
    found: list[str] = []
    while batch := queue.next_batch():
        found += [queued.message.id for queued in batch]
        queue.remove([queued.number for queued in batch])
    return found


EXPECTED = [str(number) for number in range(300) if number != 7]


def test_messages_and_dead_letters_are_taken_over_once(old: Path) -> None:
    queue = Queue("backend", settings(old))
    queue.put([Message("c", "n", "sample", "sonar", 1.5, b"{}", "", "new")])
    assert [path.name for path in old.parent.iterdir()] == ["backend.queue"]
    assert drained(queue) == [*EXPECTED, "new"]
    queue.close()
    files = read_files(queue.path, queue.owner).values()
    assert [each.reason for content in files for each in content.messages] == ["422"]
    assert drained(Queue("backend", settings(old))) == []


def test_an_interrupted_conversion_is_continued_without_repetitions(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, calls = Queue.append, [0]

    def fail_later(*arguments: object) -> None:
        calls[0] += 1
        if calls[0] == 100:
            raise OSError(28, "No space left on device")
        append(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as context:
        context.setattr(Queue, "append", fail_later)
        queue = Queue("backend", settings(old))
        assert queue.error == "No space left on device"
        queue.close()
    assert old.exists()
    assert drained(Queue("backend", settings(old))) == EXPECTED


def test_a_conversion_is_continued_once_the_disk_has_space(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    clock = _Stopped()
    with monkeypatch.context() as context:
        context.setattr(Queue, "append", fail)
        queue = Queue("backend", settings(old), clock=clock)
        assert queue.error == "No space left on device"
    clock.now = queue.retry_after
    queue.check()
    assert queue.error == ""
    assert drained(queue) == EXPECTED


def test_a_file_that_the_old_version_still_uses_is_left_alone(old: Path) -> None:
    with (old.parent / "backend.outbox.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        queue = Queue("backend", settings(old))
        assert queue.error == ""
        assert drained(queue) == []
        queue.close()
    assert drained(Queue("backend", settings(old))) == EXPECTED


@pytest.mark.parametrize("content", [b"", b"nonsense" * 1000, b"SQLite format 3\0" + b"\xff" * 999])
def test_a_damaged_old_file_is_no_obstacle(old: Path, content: bytes) -> None:
    old.write_bytes(content)
    queue = Queue("backend", settings(old))
    assert queue.error == ""
    assert drained(queue) == []
    queue.close()
    aside = [path.name for path in old.parent.iterdir() if ".damaged-" in path.name]
    assert bool(aside) is bool(content)
    assert not old.exists()
