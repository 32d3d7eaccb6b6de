"""Loads and unloads wait for each other.

They lock a file that only root can open: one that others can read, others could lock for good.
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
    """Hold the lock; the file is gone afterwards. Raises NotPermittedError, or as Node.read."""
    try:
        descriptor = _locked(path)
    except PermissionError:
        raise NotPermittedError(f"{path}: only root can load and unload") from None
    except OSError as error:
        raise_for(path.lstrip("/"), error)
    try:
        yield
    finally:
        os.unlink(path)
        os.close(descriptor)


def _locked(path: str) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            # Whoever held it before has removed it: then it is no longer what others lock.
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)
