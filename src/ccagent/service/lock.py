"""Locks for one daemon per lock directory and per queue directory."""

from __future__ import annotations

import errno
import fcntl
import os

from ccagent.errors import ConfigurationError, LockedError, NotPermittedError
from ccagent.service.private_directories import make_directory
from ccagent.service.private_files import open_private


class Lock:
    """An advisory lock (flock), held until `release` or the end of the process.

    Only the owner may open the file: any user who can open it could lock it, and prevent the start
    of ccagent. `key` is the name of the setting in errors. Raise LockedError if another process
    holds the lock, ConfigurationError if the file can't be opened or locked.
    """

    def __init__(self, path: str, key: str) -> None:
        self.path = path
        try:
            self._descriptor = open_private(path)
        except OSError as error:
            raise ConfigurationError(f"{key}: {path}: {error.strerror}") from error
        except NotPermittedError as error:
            raise ConfigurationError(f"{key}: {error}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise LockedError(
                f"another ccagent holds {path} (process {holder or 'unknown'})"
            ) from error
        except OSError as error:
            # The lock is held even if the disk has no room for the pid.
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                os.close(self._descriptor)
                raise ConfigurationError(
                    f"{key}: {path}: locking failed: {error.strerror}"
                ) from error

    def release(self) -> None:
        """Release the lock. The file stays: another process might lock a removed file."""
        os.close(self._descriptor)


def lock_directory(directory: str, name: str, key: str) -> Lock:
    """Make a directory if it is missing, and lock it for one service. Raise as `Lock` does."""
    try:
        make_directory(directory)
    except OSError as error:
        raise ConfigurationError(f"{key}: {directory}: {error.strerror}") from error
    except NotPermittedError as error:
        raise ConfigurationError(f"{key}: {error}") from error
    return Lock(os.path.join(directory, name), key)
