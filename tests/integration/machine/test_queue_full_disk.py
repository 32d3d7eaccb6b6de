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
    while batch := queue.next_batch():
        found += [waiting.message.id for waiting in batch]
        queue.remove([waiting.number for waiting in batch])
    return found


def fill_disk(place: Path) -> Path:
    """Take what is free; return the file that has it."""
    fill = place / "fill"
    with fill.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return fill


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 KB, or of ext4 with about 800 KB."""
    place = tmp_path / "small"
    place.mkdir()
    if request.param == "tmpfs":
        mount = ["mount", "-t", "tmpfs", "-o", "size=600k,mode=700", "tmpfs"]
    else:
        image = tmp_path / "image"
        image.write_bytes(bytes(1 << 20))
        options = ["-q", "-m", "0", "-O", "^has_journal", "-N", "64"]
        subprocess.run(["mkfs.ext4", *options, str(image)], check=True)
        mount = ["mount", "-o", "loop", str(image)]
    subprocess.run([*mount, str(place)], check=True)
    place.chmod(0o700)
    yield place
    # A queue that a failed test has left open keeps it busy.
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_turns_it_to_memory_and_back(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue("backend", settings(small_disk))
    queue.retry_after = 0.1
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
    assert queue.count(in_memory=True) == 0

    again = Queue("backend", settings(small_disk))
    # What fitted while the disk was filling up, then the rest, in order.
    assert drained(again) == ["first", *(str(number) for number in range(50)), "last"]
    again.close()


def test_a_disk_full_of_others_keeps_no_backlog_waiting(small_disk: Path) -> None:
    queue = Queue("backend", settings(small_disk))
    for number in range(150):
        queue.put([message(str(number), 3000)])
    assert queue.count(in_memory=True) == 0
    fill = fill_disk(small_disk)
    assert drained(queue) == [str(number) for number in range(150)]
    queue.close()
    again = Queue("backend", settings(small_disk))
    assert drained(again) == []
    again.close()
    fill.unlink()


def test_a_disk_that_the_queue_itself_has_filled_is_emptied(small_disk: Path) -> None:
    queue = Queue("backend", settings(small_disk))
    queue.retry_after = 3600.0
    for number in range(500):
        queue.put([message(str(number), 3000)])
    assert 0 < queue.count(in_memory=True) < 500
    assert drained(queue) == [str(number) for number in range(500)]
    queue.put([message("new")])
    assert (queue.count(in_memory=True), queue.error) == (0, "")
    queue.close()
    assert queue.count(in_memory=True) == 0


def test_commands_on_a_full_disk_lose_nothing(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "ccagent.toml").write_text(
        f'cluster = "x"\n[outbox]\ndirectory = "{small_disk}"\n'
        '[sinks.backend]\nurl = "http://127.0.0.1:9"\n'
    )
    queue = Queue("backend", settings(small_disk))
    queue.put([message("refused", 9000), message("waits", 2000)])
    queue.reject(queue.next_batch(1)[0].number, "422")
    queue.close()
    fill = fill_disk(small_disk)
    done = outbox(tmp_path, "retry")
    assert done.returncode == 1
    assert "No space left on device" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    listed = outbox(tmp_path)
    assert listed.returncode == 0
    assert listed.stdout.splitlines()[1].split()[1] == "1"
    assert listed.stdout.endswith("9000 bytes: 422\n")
    assert outbox(tmp_path, "drop").stdout == "deleted: 1\n"
    fill.unlink()


def outbox(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ccagent", "outbox", "--config", str(site / "ccagent.toml")]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
