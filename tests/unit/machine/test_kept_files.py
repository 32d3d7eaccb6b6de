"""Files that are kept open between readings, and the snapshot of a node."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.descriptors import KeptFiles
from ccagent.machine.node import Node
from ccagent.machine.parsed import read_parsed


@pytest.fixture
def files(tmp_path: Path) -> Iterator[KeptFiles]:
    kept = KeptFiles(Node(root=str(tmp_path)), most=2)
    yield kept
    kept.close()


def open_below(root: Path) -> list[str]:
    """Return the files below a directory that this process has open."""
    found: list[str] = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith(f"{root}/"):
            found.append(target.removeprefix(f"{root}/"))
    return sorted(found)


def test_a_file_stays_open_and_is_read_anew(tmp_path: Path, files: KeptFiles) -> None:
    for content in (b"1\n", b"22\n", b""):
        (tmp_path / "a").write_bytes(content)
        assert files.read("a") == content
        files.sweep()
        assert open_below(tmp_path) == ["a"]


def test_only_changed_content_is_parsed_again(tmp_path: Path, files: KeptFiles) -> None:
    parsed: list[bytes] = []

    def parse(content: bytes) -> int:
        parsed.append(content)
        return int(content)

    for content in (b"1\n", b"1\n", b"22\n"):
        (tmp_path / "a").write_bytes(content)
        assert read_parsed(files, "a", parse) == int(content)
        files.sweep()
    assert parsed == [b"1\n", b"22\n"]
    assert read_parsed(files, "a", bytes) == b"22\n"
    files.sweep()
    files.sweep()
    assert files.results == {}


def test_what_a_reading_did_not_use_is_closed(tmp_path: Path, files: KeptFiles) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"1")
        files.read(name)
    files.sweep()
    files.read("b")
    files.sweep()
    assert open_below(tmp_path) == ["b"]
    files.close()
    assert open_below(tmp_path) == []


def test_the_number_of_open_files_is_limited(tmp_path: Path, files: KeptFiles) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode())
    for _ in range(2):
        assert [files.read(name) for name in ("a", "b", "c")] == [b"a", b"b", b"c"]
        files.sweep()
    assert open_below(tmp_path) == ["a", "b"]


def test_a_large_file_is_read_whole(tmp_path: Path, files: KeptFiles) -> None:
    content = os.urandom(100_000)
    (tmp_path / "a").write_bytes(content)
    for _ in range(2):
        assert files.read("a") == content
        with pytest.raises(UnparsableError, match="larger than 99999 bytes"):
            files.read("a", 99_999)


def test_a_missing_file_is_looked_for_now_and_then(tmp_path: Path, files: KeptFiles) -> None:
    for _ in range(10):
        with pytest.raises(NotHereError, match="^/a: No such file or directory$"):
            files.read("a")
        files.sweep()
        (tmp_path / "a").write_bytes(b"1")
    assert files.read("a") == b"1"


def test_a_removed_group_of_the_same_name_is_opened_again(
    tmp_path: Path, files: KeptFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"1")
    files.read("a")
    (tmp_path / "a").unlink()
    (tmp_path / "a").write_bytes(b"2")
    real = os.pread

    def removed(descriptor: int, size: int, offset: int) -> bytes:
        monkeypatch.setattr(os, "pread", real)
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(os, "pread", removed)
    assert files.read("a") == b"2"
    assert open_below(tmp_path) == ["a"]


def test_new_and_replaced_directories_are_seen(tmp_path: Path, files: KeptFiles) -> None:
    (tmp_path / "job/step_0").mkdir(parents=True)
    assert files.directories("job") == ["step_0"]
    (tmp_path / "job/step_1").mkdir()
    assert sorted(files.directories("job")) == ["step_0", "step_1"]
    (tmp_path / "job/step_1").rmdir()
    (tmp_path / "job/step_2").mkdir()
    with pytest.raises(NotHereError):
        files.directories("job/step_1")
    assert sorted(files.directories("job")) == ["step_0", "step_2"]
    assert files.directories("job/step_2") == ()


def test_a_snapshot_parses_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    node = Node(root=str(tmp_path))
    taken = node.snapshot()
    assert read_parsed(taken, "a", int) == 1
    (tmp_path / "a").write_bytes(b"2")
    assert read_parsed(taken, "a", int) == 1
    assert read_parsed(taken, "a", bytes) == b"2"
    assert read_parsed(node, "a", int) == 2
    taken.parsed = None
    assert read_parsed(taken, "a", int) == 2


def test_a_file_of_many_records_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/mounts").write_bytes(b"short\n" + b"long" * 1000)
    real = os.pread

    def read(descriptor: int, _: int, offset: int) -> bytes:
        # The kernel returns the first record alone if the second has no room in its page.
        return real(descriptor, 4096 if offset else 6, offset)

    monkeypatch.setattr(os, "pread", read)
    node = Node(root=str(tmp_path))
    kept = KeptFiles(node, short=0)
    for _ in range(2):
        taken = node.snapshot(kept)
        assert taken.read("proc/mounts") == b"short\n" + b"long" * 1000
        assert open_below(tmp_path) == ["proc/mounts"]


def test_a_snapshot_keeps_no_files_of_processes(tmp_path: Path) -> None:
    node = Node(root=str(tmp_path))
    kept = KeptFiles(node, short=0)
    for path in ("proc/7/stat", "proc/self/stat", "proc/1/mountinfo", "run/file"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"1")
        assert node.snapshot(kept).read_single(path) == b"1"
    assert sorted(open_below(tmp_path)) == ["proc/1/mountinfo", "proc/self/stat"]


def test_an_unchanged_file_is_not_parsed_again_in_the_next_snapshot(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/a").write_bytes(b"1 2")
    node = Node(root=str(tmp_path))
    kept = KeptFiles(node, short=0)
    first = read_parsed(node.snapshot(kept), "proc/a", bytes.split)
    assert read_parsed(node.snapshot(kept), "proc/a", bytes.split) is first
    (tmp_path / "proc/a").write_bytes(b"3")
    assert read_parsed(node.snapshot(kept), "proc/a", bytes.split) == [b"3"]
