"""The queue of a sink on a file system that is full. Only root may mount one."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.config.configuration import OutboxSettings
from ccagent.queue.queue import Queue
from ccagent.records.message import Message


def message(text: str, size: int = 10) -> Message:
    return Message("c", "n", "sample", "sonar", 1.5, text.encode().ljust(size), "", text)


def settings(directory: Path) -> OutboxSettings:
    return OutboxSettings(directory=str(directory))


def drained(queue: Queue) -> list[str]:
    """Take everything out."""
    found: list[str] = []
    while (batch := queue.next_batch()).messages:
        found += [waiting.message.id for waiting in batch.messages]
        queue.remove(batch, [waiting.number for waiting in batch.messages])
    return found


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 KB."""
    place = tmp_path / "small"
    place.mkdir()
    options = "size=600k,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    yield place
    # A queue that a failed test has left open keeps it busy.
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_turns_it_to_memory_and_back(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue("backend", settings(small_disk))
    queue._disk.retry_after = 0.1
    queue.put([message("first")])
    fill = small_disk / "fill"
    with fill.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    for number in range(50):
        queue.put([message(str(number), 5000)])
    assert caplog.text.count("messages are kept in memory") >= 1
    assert queue.count() == 51
    fill.unlink()
    time.sleep(0.2)
    queue.put([message("last")])
    queue.close()
    assert queue.lost == 0

    again = Queue("backend", settings(small_disk))
    # What fitted while the disk was filling up, then the rest, in order.
    assert drained(again) == ["first", *(str(number) for number in range(50)), "last"]
    again.close()
