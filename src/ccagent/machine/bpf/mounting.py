"""The file system in which programs are pinned: is it there, mount it, unmount it."""

from __future__ import annotations

import ctypes
import os
import re
from typing import NamedTuple

from ccagent.errors import CcagentError, NotHereError, NotPermittedError, ProgramError

SOURCE = "ccagent"
"""The source under which we mount: what has it is ours to unmount."""

_MOUNTS = "/proc/self/mountinfo"
_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_DETACH = 2  # a reader who still has a file open does not keep it


class Mount(NamedTuple):
    """A mounted file system."""

    point: str
    kind: str
    source: str


def parse_mounts(content: str, device: str) -> Mount | None:
    """Find the last mount of a device `MAJOR:MINOR` in /proc/PID/mountinfo. See proc(5)."""
    found: Mount | None = None
    for line in content.split("\n"):
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if dash and len(fields) >= 6 and len(rest) >= 2 and fields[2] == device:
            found = Mount(_unescaped(fields[4]), rest[0], _unescaped(rest[1]))
    return found


def _unescaped(name: str) -> str:
    """Undo what seq_path() of the kernel makes of spaces and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), name)


def mount_of(directory: str) -> Mount | None:
    """Find the file system that a directory lies in; None if there is no such directory."""
    try:
        device = os.stat(directory).st_dev
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            content = file.read()
    except OSError:
        return None
    return parse_mounts(content, f"{os.major(device)}:{os.minor(device)}")


def mount_bpffs(directory: str) -> None:
    """Mount a bpffs that all may enter and root may write. Raises as `_called` does."""
    _called(
        "mount",
        SOURCE.encode(),
        os.fsencode(directory),
        b"bpf",
        ctypes.c_ulong(_NOSUID_NODEV_NOEXEC),
        b"mode=0755",
        what=f"{directory}: mounting a bpffs there",
    )


def unmount(directory: str) -> None:
    """Unmount what is mounted on a directory. Raises as `_called` does."""
    _called("umount2", os.fsencode(directory), _DETACH, what=f"{directory}: unmounting it")


def _called(function: str, *arguments: object, what: str) -> None:
    """Raise NotPermittedError, NotHereError (a kernel without bpffs) or ProgramError."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments) == 0:
        return
    code = ctypes.get_errno()
    error: type[CcagentError] = {1: NotPermittedError, 13: NotPermittedError, 19: NotHereError}.get(
        code, ProgramError
    )
    raise error(f"{what}: {os.strerror(code)}")
