"""A queue whose system calls fail, one after the other, and that is killed at each of them."""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ccagent.config.configuration import OutboxSettings
from ccagent.queue.queue import Queue
from ccagent.queue.segment import DEAD
from ccagent.queue.segment_directory import read_files
from ccagent.records.message import Message
from tests.support.effort import IS_NIGHTLY
from tests.support.faulty_calls import FaultyCalls

_NEVER = 1 << 30


def message(number: int) -> Message:
    body = b"%d" % number
    return Message("c", "n", "sample", "sonar", 1.5, body.ljust(3000), "", str(number))


def where(directory: Path) -> OutboxSettings:
    # Segments of 8 KiB: each has two messages.
    return OutboxSettings(directory=str(directory), max_bytes=65536, durability="power")


def work(directory: Path, note: Callable[[str, str], None]) -> Queue:
    """Start, put, send, acknowledge, reject and close; note what is done."""
    queue = Queue("backend", where(directory))
    queue.retry_after = 0.0
    for number in range(6):
        queue.put([message(number)])
        note("put", str(number))
    for _ in range(2):
        for queued in queue.next_batch(2):
            note("sent", queued.message.id)
            queue.remove([queued.number])
            note("acknowledged", queued.message.id)
    for queued in queue.next_batch(1):
        queue.reject(queued.number, "422")
        note("rejected", queued.message.id)
    queue.check()
    queue.put([message(6)])
    note("put", "6")
    queue.close()
    return queue


def read_back(directory: Path) -> tuple[list[str], set[str]]:
    """Return the ids of the messages and of the dead letters that the next process finds."""
    queue = Queue("backend", where(directory))
    assert queue.error == ""
    found: list[str] = []
    while batch := queue.next_batch():
        found += [queued.message.id for queued in batch]
        queue.remove([queued.number for queued in batch])
    files = read_files(queue.path, queue.owner)
    letters = {
        each.entry.message.id
        for content in files.values()
        for each in content.messages
        if each.state == DEAD and each.entry is not None
    }
    queue.close()
    return found, letters


def count_calls(directory: Path) -> int:
    calls = FaultyCalls(_NEVER, _NEVER, 0)
    with calls.patched():
        work(directory, _note_nothing)
    return calls.count


@pytest.mark.slow
@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize(
    "fault", [errno.ENOSPC, errno.EIO, errno.EINTR, *[errno.EDQUOT] * IS_NIGHTLY]
)
def test_no_failed_call_loses_a_message_or_raises(
    tmp_path: Path, fault: int, caplog: pytest.LogCaptureFixture, *, is_lasting: bool
) -> None:
    total = count_calls(tmp_path / "counted")
    assert total > 80
    doubled: dict[str, int] = {}
    for number in range(1, total + 1):
        directory = tmp_path / str(number)
        done: dict[str, list[str]] = {}

        def note(what: str, name: str, done: dict[str, list[str]] = done) -> None:
            done.setdefault(what, []).append(name)

        calls = FaultyCalls(number, _NEVER if is_lasting else number, fault)
        with calls.patched():
            queue = work(directory, note)
        found, letters = read_back(directory)
        acknowledged, rejected = done.get("acknowledged", []), done.get("rejected", [])
        missing = {*done["put"]} - {*found} - {*acknowledged} - letters - {*rejected}
        assert len(missing) <= queue.count(in_memory=True), (
            f"call {number}, {calls.failed[:1]}: {missing}"
        )
        assert len(found) == len({*found})
        if twice := {*found} & {*acknowledged}:
            doubled[calls.failed[0]] = max(doubled.get(calls.failed[0], 0), len(twice))
            assert is_lasting, f"call {number}, {calls.failed[:1]}: {twice}"
    assert [record for record in caplog.records if record.exc_info] == []
    logging.getLogger(__name__).info("sent twice after a restart: %s", doubled)


@pytest.mark.slow
def test_no_kill_loses_a_message_or_repeats_an_acknowledged_one(tmp_path: Path) -> None:
    total = count_calls(tmp_path / "counted")
    for number in range(1, total + 1):
        directory = tmp_path / str(number)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                with FaultyCalls(number, number, signal.SIGKILL).patched():
                    work(directory, partial(_write_line, writing))
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading, encoding="ascii") as file:
            notes = [line.split() for line in file]
        os.waitpid(child, 0)
        done = {what: {name for kind, name in notes if kind == what} for what, _ in notes}
        found, letters = read_back(directory)
        missing = done.get("put", set()) - {*found} - done.get("sent", set()) - letters
        assert missing == set(), f"call {number}"
        assert {*found} & done.get("acknowledged", set()) == set(), f"call {number}"
        assert found == sorted(found)


def _note_nothing(what: str, name: str) -> None:
    del what, name


def _write_line(descriptor: int, what: str, name: str) -> None:
    os.write(descriptor, f"{what} {name}\n".encode())
