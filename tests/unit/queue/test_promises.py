"""Faults of the table in src/ccagent/README.md that no other test of the queue shows."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from ccagent.config.configuration import OutboxSettings
from ccagent.queue.queue import Queue, make_directory_name
from ccagent.records.message import Message

DIRECTORY = make_directory_name("backend")


def message(number: int, size: int = 3000) -> Message:
    body = b"%d" % number
    return Message("c", "n", "sample", "sonar", 1.5, body.ljust(size), "", str(number))


def settings(directory: Path, *, is_synced: bool = False) -> OutboxSettings:
    # Segments of 8 KiB: each has two messages.
    return OutboxSettings(
        directory=str(directory),
        max_bytes=65536,
        durability="power" if is_synced else "process",
    )


def fill(directory: Path, count: int) -> Queue:
    queue = Queue("backend", settings(directory))
    for number in range(count):
        queue.put([message(number)])
    return queue


def drained(queue: Queue) -> list[int]:
    found: list[int] = []
    while batch := queue.next_batch():
        found += [int(queued.message.id) for queued in batch]
        queue.remove([queued.number for queued in batch])
    return found


def test_a_power_failure_loses_no_synced_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what was in the files at the last fdatasync survives."""
    disk, fdatasync = tmp_path / "disk", os.fdatasync

    def sync(descriptor: int) -> None:
        fdatasync(descriptor)
        shutil.rmtree(disk, ignore_errors=True)
        shutil.copytree(tmp_path / "outbox", disk)

    monkeypatch.setattr(os, "fdatasync", sync)
    queue = Queue("backend", settings(tmp_path / "outbox", is_synced=True))
    for number in range(6):
        queue.put([message(number)])
        shutil.copytree(disk, tmp_path / f"after {number}")
    queue.close()
    for number in range(6):
        again = Queue("backend", settings(tmp_path / f"after {number}"))
        assert drained(again) == list(range(number + 1))
        again.close()


def test_a_power_failure_costs_only_what_was_not_written_yet(tmp_path: Path) -> None:
    fill(tmp_path, 5).close()
    last = max((tmp_path / DIRECTORY).iterdir())
    content = last.read_bytes()
    last.write_bytes(content[:-100] + bytes(100))  # pages that did not reach the disk
    (tmp_path / DIRECTORY / "000000000009.log").touch()
    queue = Queue("backend", settings(tmp_path))
    queue.put([message(7)])
    assert drained(queue) == [0, 1, 2, 3, 7]
    queue.close()


def test_a_file_that_cant_be_read_is_sent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, 6).close()
    pread, first = os.pread, min((tmp_path / DIRECTORY).iterdir()).stat().st_ino

    def fail(descriptor: int, size: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino == first:
            raise OSError(5, "Input/output error")
        return pread(descriptor, size, offset)

    with monkeypatch.context() as context:
        context.setattr(os, "pread", fail)
        queue = Queue("backend", settings(tmp_path))
        assert drained(queue) == [2, 3, 4, 5]
        assert queue.error.endswith(".log: Input/output error")
        assert "Input/output error" in caplog.text
        queue.check()
        assert drained(queue) == []
    queue._retry_at = 0.0
    queue.check()
    assert (drained(queue), queue.error) == ([0, 1], "")
    queue.close()


def test_a_file_that_fails_while_it_is_sent_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = fill(tmp_path, 6)
    first, second = queue.next_batch(2)

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as context:
        context.setattr(os, "pread", fail)
        assert queue.next_batch() == []
        queue.remove([first.number, second.number])
    queue._retry_at = 0.0
    queue.check()
    assert drained(queue) == [2, 3, 4, 5]
    queue.close()


def test_messages_in_removed_files_are_lost_unless_they_are_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = fill(tmp_path, 20)
    shutil.rmtree(tmp_path / DIRECTORY)
    queue.check()
    left = drained(queue)
    assert {0, 1, 18, 19} <= {*left}
    lost = [text for text in caplog.messages if "removed or replaced with 2 messages" in text]
    assert 2 * len(lost) + len(left) == 20
    queue.close()


def test_a_restored_copy_is_sent_again(tmp_path: Path) -> None:
    queue = fill(tmp_path, 4)
    shutil.copytree(tmp_path / DIRECTORY, tmp_path / "copy")
    assert drained(queue) == [0, 1, 2, 3]
    queue.put([message(4)])
    queue.close()
    shutil.rmtree(tmp_path / DIRECTORY)
    (tmp_path / "copy").rename(tmp_path / DIRECTORY)
    again = Queue("backend", settings(tmp_path))
    assert drained(again) == [0, 1, 2, 3]
    again.close()


def test_a_restored_copy_replaces_no_newer_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, now = fill(tmp_path, 4), time.time
    shutil.copytree(tmp_path / DIRECTORY, tmp_path / "copy")
    assert drained(queue) == [0, 1, 2, 3]
    queue.close()
    monkeypatch.setattr(time, "time", lambda: now() + 60)
    again = Queue("backend", settings(tmp_path))
    again.put([message(4)])
    again.close()
    shutil.copytree(tmp_path / "copy", tmp_path / DIRECTORY, dirs_exist_ok=True)
    restored = Queue("backend", settings(tmp_path))
    assert drained(restored) == [0, 1, 2, 3, 4]
    restored.close()


@pytest.mark.parametrize("jump", [8 * 86400.0, -1_699_000_000.0])
def test_a_wrong_clock_drops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    queue, now = fill(tmp_path, 2), time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump)
    queue.put([message(2)])
    queue.close()
    again = Queue("backend", settings(tmp_path))
    again.put([message(3)])
    assert drained(again) == [0, 1, 2, 3]
    again.close()


def test_a_file_system_that_hangs_makes_an_agent_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, goes_on, pwrite = fill(tmp_path, 1), threading.Event(), os.pwrite

    def hang(descriptor: int, data: bytes, offset: int) -> int:
        assert goes_on.wait(60)
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", hang)
    thread = threading.Thread(target=queue.put, args=([message(1)],))
    thread.start()
    assert thread.is_alive()
    goes_on.set()
    thread.join()
    assert drained(queue) == [0, 1]
    queue.close()
