"""A directory that another user may write to, with what that user plants in it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534

PRECIOUS = b"nobody may touch this\n"

KINDS = ("link", "dangling link", "hard link", "pipe", "socket", "directory link")
"""What can be planted."""


class HostileDirectory:
    """A directory of user nobody, beside one of root's own whose files must stay as they are."""

    def __init__(self, path: Path) -> None:
        self.path = path / "theirs"
        self.path.mkdir()
        self.precious = path / "precious"
        self.precious.write_bytes(PRECIOUS)
        self.precious.chmod(0o640)
        self.home = path / "home"
        self.home.mkdir()
        self._before = self.precious.stat()
        os.chown(self.path, NOBODY, NOBODY)

    def plant(self, name: str, kind: str) -> Path:
        """Plant something, as the other user can."""
        place = self.path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        match kind:
            case "link":
                place.symlink_to(self.precious)
            case "dangling link":
                place.symlink_to(self.home / "made")
            case "hard link":
                os.link(self.precious, place)
                self._before = self.precious.stat()
            case "pipe":
                os.mkfifo(place, 0o666)
            case "socket":
                import socket

                with socket.socket(socket.AF_UNIX) as made:
                    made.bind(str(place))
            case _:
                place.symlink_to(self.home)
        for each in [place, *place.parents]:
            if each == self.path:
                break
            if kind != "hard link" or each != place:
                os.lchown(each, NOBODY, NOBODY)
        return place

    def check(self, *, has_lost_a_name: bool = False) -> None:
        """Assert that nothing of root's was changed or made."""
        after = self.precious.stat()
        assert self.precious.read_bytes() == PRECIOUS
        assert (after.st_mode, after.st_uid, after.st_nlink, after.st_mtime_ns) == (
            self._before.st_mode,
            self._before.st_uid,
            self._before.st_nlink - has_lost_a_name,
            self._before.st_mtime_ns,
        )
        assert list(self.home.iterdir()) == []


@contextmanager
def hostile_directory() -> Generator[HostileDirectory]:
    """Make a directory of user nobody, which that user can reach."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield HostileDirectory(Path(directory))


def as_nobody(action: Callable[[], object]) -> int:
    """Do something as user nobody in a process of its own; return its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            action()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
