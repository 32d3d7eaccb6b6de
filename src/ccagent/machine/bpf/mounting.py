"""The bpffs of pinned programs: check, mount, unmount."""

from __future__ import annotations

import ctypes
import os

from ccagent.errors import CcagentError, NotHereError, NotPermittedError, ProgramError
from ccagent.machine.procfs.mountinfo import MOUNTINFO, Mount, parse_mountinfo

SOURCE = "ccagent"
"""Source of ccagent's mounts. Mounts with another source are never unmounted."""

_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_DETACH = 2  # works also with open files


def mount_of(directory: str) -> Mount | None:
    """Return the mount of a directory; None if the directory does not exist.

    Raise UnparsableError if the kernel's table of mounts has another format.
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
    """Mount a bpffs with mode 0755. Raise the errors of `_call`."""
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
    """Unmount the file system on a directory. Raise the errors of `_call`."""
    _call("umount2", os.fsencode(directory), _DETACH, what=f"{directory}: unmounting it")


def _call(function: str, *arguments: object, what: str) -> None:
    """Call a function of libc.

    Raise NotPermittedError without privileges, NotHereError if the kernel has no bpffs, else
    ProgramError if the call fails.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments) == 0:
        return
    code = ctypes.get_errno()
    error: type[CcagentError] = {1: NotPermittedError, 13: NotPermittedError, 19: NotHereError}.get(
        code, ProgramError
    )
    raise error(f"{what}: {os.strerror(code)}")
