"""The file system of pinned programs: check, mount, unmount."""

from __future__ import annotations

import ctypes
import os

from ccagent.errors import CcagentError, NotHereError, NotPermittedError, ProgramError
from ccagent.machine.procfs.mountinfo import MOUNTINFO, Mount, parse_mountinfo

SOURCE = "ccagent"
"""Source of our mounts: only those with it are unmounted."""

_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_DETACH = 2  # also with files that are still open


def mount_of(directory: str) -> Mount | None:
    """Return the file system that a directory lies in; None if there is no such directory.

    Raise UnparsableError if the kernel's table of mounts has another form.
    """
    try:
        device = os.stat(directory).st_dev
        with open(f"/{MOUNTINFO}", "rb") as file:
            content = file.read()
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    return next(
        (each for each in reversed(parse_mountinfo(content)) if each.device == number), None
    )


def mount_bpffs(directory: str) -> None:
    """Mount a bpffs that all may enter and root may write. Raises as `_call` does."""
    _call(
        "mount",
        SOURCE.encode(),
        os.fsencode(directory),
        b"bpf",
        ctypes.c_ulong(_NOSUID_NODEV_NOEXEC),
        b"mode=0755",
        what=f"{directory}: mounting a bpffs there",
    )


def unmount(directory: str) -> None:
    """Unmount what is mounted on a directory. Raises as `_call` does."""
    _call("umount2", os.fsencode(directory), _DETACH, what=f"{directory}: unmounting it")


def _call(function: str, *arguments: object, what: str) -> None:
    """Raise NotPermittedError, NotHereError (a kernel without bpffs) or ProgramError."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments) == 0:
        return
    code = ctypes.get_errno()
    error: type[CcagentError] = {1: NotPermittedError, 13: NotPermittedError, 19: NotHereError}.get(
        code, ProgramError
    )
    raise error(f"{what}: {os.strerror(code)}")
