"""System calls of the queue that fail, or kill the process, at a chosen call."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

CALLS = (
    "open", "close", "pwrite", "pread", "posix_fallocate", "ftruncate", "fdatasync", "fsync",
    "unlink", "rename", "listdir", "fstat", "lstat", "stat", "mkdir",
)  # fmt: skip

_CALLERS = ("ccagent.queue.", "ccagent.service.private_files")


class FaultyCalls:
    """Counts the system calls of the queue, and lets those from `first` to `last` fail.

    A fault is an errno, or the signal SIGKILL, which is sent after the call.
    """

    def __init__(self, first: int, last: int, fault: int | signal.Signals) -> None:
        self.count = 0
        self.failed: list[str] = []
        self._first = first
        self._last = last
        self._fault = fault

    @contextmanager
    def patched(self) -> Generator[None]:
        """Replace the system calls of this process."""
        originals = {name: getattr(os, name) for name in CALLS}
        flock = fcntl.flock
        try:
            for name, original in originals.items():
                setattr(os, name, self._wrap(name, original))
            fcntl.flock = self._wrap("flock", flock)
            yield
        finally:
            for name, original in originals.items():
                setattr(os, name, original)
            fcntl.flock = flock

    def _wrap(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keys: Any) -> Any:
            caller = sys._getframe(1).f_globals["__name__"]
            # Closing a directory that was opened with O_PATH cannot fail.
            if not caller.startswith(_CALLERS[:1] if name == "close" else _CALLERS):
                return original(*arguments, **keys)
            self.count += 1
            if not self._first <= self.count <= self._last:
                return original(*arguments, **keys)
            self.failed.append(name)
            if self._fault == signal.SIGKILL:
                original(*arguments, **keys)
                os.kill(os.getpid(), signal.SIGKILL)
            if name == "close":
                original(*arguments, **keys)
            raise OSError(self._fault, os.strerror(self._fault))

        return call
