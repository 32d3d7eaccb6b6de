"""Files in directories that others may write to: what is followed, refused and created."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.errors import NotPermittedError
from ccagent.service.private_directories import check_directory, make_directory, open_directory
from ccagent.service.private_files import open_private, open_trusted, replace_file
from tests.support.hostile_user import KINDS, NOBODY, HostileDirectory, hostile_directory

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def theirs() -> Iterator[HostileDirectory]:
    with hostile_directory() as made:
        yield made


# Only root may use what it has created with 0o777.
@pytest.fixture(params=[0o000, 0o022, 0o077, 0o077 if os.geteuid() else 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.usefixtures("umask")
def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    os.close(open_private(str(tmp_path / "private")))
    os.close(open_private(str(tmp_path / "public"), mode=0o644))
    replace_file(str(tmp_path / "state"), b"x", 0o640)
    make_directory(str(tmp_path / "made" / "twice"), 0o750)
    modes = {str(path.relative_to(tmp_path)): mode(path) for path in tmp_path.rglob("*")}
    assert modes == {
        "private": 0o600,
        "public": 0o644,
        "state": 0o640,
        "made": 0o755,
        "made/twice": 0o750,
    }


@as_root
@pytest.mark.parametrize("kind", KINDS)
def test_what_another_user_has_planted_is_not_opened(theirs: HostileDirectory, kind: str) -> None:
    path = theirs.plant("file", kind)
    for flags in (os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_RDONLY):
        with pytest.raises(NotPermittedError, match=str(path)):
            open_private(str(path), flags)
    theirs.check()


@as_root
@pytest.mark.parametrize("kind", KINDS)
def test_what_another_user_has_planted_is_replaced(theirs: HostileDirectory, kind: str) -> None:
    path = theirs.plant("file", kind)
    replace_file(str(path), b"ours", 0o600)
    assert path.read_bytes() == b"ours"
    assert path.lstat().st_uid == NOBODY, "root's files belong to the owner of the directory"
    assert [each.name for each in theirs.path.iterdir()] == ["file"], "nothing temporary is left"
    theirs.check(has_lost_a_name=kind == "hard link")


@as_root
def test_no_link_of_another_user_is_followed_on_the_way(theirs: HostileDirectory) -> None:
    theirs.plant("in", "directory link")
    path = str(theirs.path / "in" / "file")
    for attempt in (
        lambda: open_private(path),
        lambda: open_trusted(path),
        lambda: replace_file(path, b"x"),
        lambda: make_directory(path),
        lambda: open_directory(path),
    ):
        with pytest.raises(NotPermittedError, match="link of user 65534 and is not followed"):
            attempt()
    theirs.check()


def test_links_of_our_own_are_followed_to_a_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "absolute").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "up").symlink_to("../real/.././real")
    os.close(open_private(str(tmp_path / "absolute" / "up" / "file")))
    assert (tmp_path / "real" / "file").exists()


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        open_private(str(tmp_path / "a" / "file"))
    with pytest.raises(OSError, match="Too many levels"):
        open_trusted(str(tmp_path / "a"))


@as_root
def test_a_file_of_a_third_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    os.chown(path, 1234, -1)
    with pytest.raises(NotPermittedError, match="belongs to user 1234"):
        open_private(str(path))


@as_root
def test_what_root_makes_belongs_to_the_owner_of_the_directory(theirs: HostileDirectory) -> None:
    make_directory(str(theirs.path / "a" / "b"))
    os.close(open_private(str(theirs.path / "a" / "b" / "file")))
    for name in ("a", "a/b", "a/b/file"):
        status = (theirs.path / name).stat()
        assert (status.st_uid, status.st_gid) == (NOBODY, NOBODY)


def test_an_existing_file_keeps_its_content_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"text")
    path.chmod(0o640)
    os.close(open_private(str(path)))
    assert (path.read_bytes(), mode(path)) == (b"text", 0o640)
    os.close(open_private(str(path), os.O_WRONLY | os.O_TRUNC))
    assert path.read_bytes() == b""


def test_errors_name_the_path(tmp_path: Path) -> None:
    path = str(tmp_path / "no" / "file")
    for attempt in (
        lambda: open_private(path),
        lambda: open_private(path, os.O_RDONLY),
        lambda: replace_file(path, b""),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            attempt()
        assert str(caught.value.filename).startswith(str(tmp_path / "no"))


def test_a_file_is_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")

    def fail(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        replace_file(str(path), b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("state", b"old")]


def test_nothing_stays_open(theirs: HostileDirectory) -> None:
    before = os.listdir("/proc/self/fd")
    for kind in KINDS:
        path = theirs.plant(kind, kind)
        with pytest.raises(NotPermittedError):
            open_private(str(path))
    os.close(open_private(str(theirs.path / "file")))
    replace_file(str(theirs.path / "file"), b"")
    make_directory(str(theirs.path / "made"))
    check_directory(str(theirs.path))
    assert os.listdir("/proc/self/fd") == before


def test_a_directory_of_ours_is_safe(tmp_path: Path) -> None:
    assert check_directory(str(tmp_path)) == ""
    assert check_directory(str(tmp_path / "to" / "be" / "made")) == ""


def test_why_a_directory_is_not_safe(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    inner = shared / "inner"
    inner.mkdir()
    shared.chmod(0o777)
    assert check_directory(str(shared)).startswith(f"{shared}: every user can create files in it")
    assert check_directory(str(inner)).startswith(f"{shared}: every user")
    shared.chmod(0o1777)
    assert check_directory(str(shared)).startswith(f"{shared}: every user")
    assert check_directory(str(inner)) == "", "others can't rename what is ours"
    assert check_directory(str(shared / "new")).startswith(f"{shared}: every user")
    (tmp_path / "file").write_bytes(b"")
    assert check_directory(str(tmp_path / "file")) == f"{tmp_path}/file: Not a directory"


@as_root
def test_who_may_write_a_directory(theirs: HostileDirectory) -> None:
    assert check_directory(str(theirs.path)) == "", "its owner is whom the files are for"
    inner = theirs.path / "inner"
    inner.mkdir()
    assert check_directory(str(inner)).startswith(f"{theirs.path}: belongs to user 65534, who can")
    os.chown(inner, 0, 1234)
    inner.chmod(0o770)
    os.chown(theirs.path, 0, 0)
    assert check_directory(str(inner)) == f"{inner}: group 1234 can create files in it: chmod g-w"
    theirs.plant("link", "directory link")
    assert "link of user 65534" in check_directory(str(theirs.path / "link"))
