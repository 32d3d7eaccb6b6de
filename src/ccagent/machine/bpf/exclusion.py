"""The lock for loading and unloading.

Only root can open its file: a user who can open a file can hold its lock without limit.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ccagent.errors import NotPermittedError
from ccagent.machine.file_errors import raise_for

if TYPE_CHECKING:
    from collections.abc import Generator

LOCK = "/run/ccagent-kernel.lock"


@contextmanager
def alone(path: str = LOCK) -> Generator[None]:
    """Hold the lock, and remove its file afterwards.

    Raise NotPermittedError without root, or an error of Node.read.
    """
    try:
        descriptor = _open_locked(path)
    except PermissionError as error:
        raise NotPermittedError(f"{path}: only root can load and unload") from error
    except OSError as error:
        raise_for(path.lstrip("/"), error)
    try:
        yield
    finally:
        os.unlink(path)
        os.close(descriptor)


def _open_locked(path: str) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            # If the previous holder has removed the file, this lock excludes nobody: open again.
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)
