"""The store of a sink: on disk while that works."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.config import OutboxSettings
from ccagent.message import Message
from ccagent.store import Store, file_of


def message(text: str, size: int = 10) -> Message:
    return Message("c", "n", "sample", "sonar", 1.5, text.encode().ljust(size), "", text)


def drained(store: Store) -> list[str]:
    """Take everything out."""
    found: list[str] = []
    while True:
        spool, batch = store.oldest()
        if not batch:
            return found
        found += [waiting.message.id for waiting in batch]
        store.remove(spool, batch)


def settings(directory: Path) -> OutboxSettings:
    return OutboxSettings(directory=str(directory))


def test_messages_survive_the_process(tmp_path: Path) -> None:
    store = Store("backend", settings(tmp_path / "made"))
    store.put([message("0"), message("1")])
    del store
    again = Store("backend", settings(tmp_path / "made"))
    assert again.count() == 2
    assert drained(again) == ["0", "1"]
    again.close()


@pytest.mark.parametrize("is_on_disk", [True, False])
def test_the_bytes_that_wait_are_counted(tmp_path: Path, *, is_on_disk: bool) -> None:
    store = Store("backend", settings(tmp_path) if is_on_disk else OutboxSettings())
    assert store.size() == 0
    store.put([message("0", 1000)])
    store.put([message("1", 500)])
    assert store.size() == 1500
    drained(store)
    assert store.size() == 0
    store.put([message("2", 1000)])
    store.close()
    assert store.size() == 0


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    store = Store("backend", settings(tmp_path / "made"))
    store.put([message("0")])
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "made").iterdir()}
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}
    store.close()


def test_a_sink_of_any_name_has_a_file_of_its_own() -> None:
    assert (
        file_of("--sink nats://x:4222/../a b")
        == "--sink%20nats%3A%2F%2Fx%3A4222%2F..%2Fa%20b.outbox"
    )


@pytest.mark.parametrize("content", [b"nonsense" * 1000, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_set_aside_and_a_new_one_begun(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / file_of("backend")
    file.write_bytes(content)
    store = Store("backend", settings(tmp_path))
    store.put([message("0")])
    assert drained(store) == ["0"]
    store.close()
    (aside,) = tmp_path.glob("*.damaged-*")
    assert aside.read_bytes() == content
    assert "set aside" in caplog.text


def test_a_file_damaged_while_it_is_used_loses_nothing_new(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store("backend", settings(tmp_path))
    store.put([message("0")])
    store.close()
    store = Store("backend", settings(tmp_path))
    store.put([message("1")])
    file = tmp_path / file_of("backend")
    for path in (file, Path(f"{file}-wal")):
        with path.open("r+b") as opened:
            opened.write(b"\xff" * path.stat().st_size)
    other = Store("backend", settings(tmp_path))
    other.put([message("2")])
    assert "2" in drained(other)
    other.close()
    assert "set aside" in caplog.text


def test_a_directory_that_cant_be_made_is_said_and_memory_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    store = Store("backend", settings(tmp_path / "file" / "below"))
    store.put([message("0")])
    assert drained(store) == ["0"]
    assert "messages wait in memory" in caplog.text
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the small file system")
def test_a_full_disk_turns_it_to_memory_and_back(
    small_disk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "retry_after", 0.1)
    store = Store("backend", settings(small_disk))
    store.put([message("first")])
    fill = small_disk / "fill"
    with fill.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    for number in range(50):
        store.put([message(str(number), 5000)])
    assert caplog.text.count("messages wait in memory") >= 1
    assert store.count() == 51
    fill.unlink()
    time.sleep(0.2)
    store.put([message("last")])
    store.close()

    again = Store("backend", settings(small_disk))
    # What fitted while the disk was filling up, then the rest, in order.
    assert drained(again) == ["first", *(str(number) for number in range(50)), "last"]
    again.close()


def test_memory_is_used_on_demand(tmp_path: Path) -> None:
    store = Store("backend", OutboxSettings(directory=str(tmp_path), memory=True))
    store.put([message("0")])
    assert not store.is_on_disk
    assert list(tmp_path.iterdir()) == []
    store.close()
