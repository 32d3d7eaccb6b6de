"""The queue of a sink on a file system that is full. Only root may mount one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
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


def fill_disk(place: Path) -> Path:
    """Take what is free; return the file that has it."""
    fill = place / "fill"
    with fill.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return fill


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
    fill = fill_disk(small_disk)
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


@pytest.mark.parametrize("command", [(), ("retry",), ("drop",)])
def test_commands_say_that_the_disk_is_full_and_lose_nothing(
    small_disk: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "ccagent.toml").write_text(
        f'cluster = "x"\n[outbox]\ndirectory = "{small_disk}"\n'
        '[sinks.backend]\nurl = "http://127.0.0.1:9"\n'
    )
    queue = Queue("backend", settings(small_disk))
    queue.put([message("refused", 2000), message("waits", 2000)])
    batch = queue.next_batch(1)
    queue.reject(batch, batch.messages[0].number, "422")
    queue.close()
    fill = fill_disk(small_disk)
    done = outbox(tmp_path, *command)
    assert done.returncode == 1
    assert "no space left on the device" in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr
    fill.unlink()
    listed = outbox(tmp_path)
    assert listed.returncode == 0
    assert listed.stdout.splitlines()[1].split()[1] == "1"
    assert listed.stdout.endswith("2000 bytes: 422\n")


def outbox(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ccagent", "outbox", "--config", str(site / "ccagent.toml")]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
