"""One instance per lock directory."""

from __future__ import annotations

import fcntl
import os

from ccagent.errors import ConfigurationError, LockedError

_NAME = "ccagent.lock"


class Lock:
    """Holds an advisory lock (flock) until released; it goes with the process, however that ends.

    The file is its owner's alone: whoever could open it, could keep ccagent from starting.

    Raises LockedError if another process has it, ConfigurationError if it can't be made.
    """

    def __init__(self, directory: str) -> None:
        path = os.path.join(directory, _NAME)
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(f"lock-directory: {path}: {error.strerror}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise LockedError(
                f"another ccagent holds {path} (process {holder or 'unknown'})"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go of the lock. The file stays, so that nobody locks one that is being removed."""
        os.close(self._descriptor)
