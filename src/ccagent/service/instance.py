"""An instance of a service: its lock on a directory, and its notifications to systemd.

The notifications have the protocol of sd_notify. Source: sd_notify(3), sd_watchdog_enabled(3). A
message is one datagram of lines `KEY=value` to the Unix socket in $NOTIFY_SOCKET. A name with @ at
the start is in the abstract namespace.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError, LockedError, NotPermittedError
from ccagent.log import logger, printable
from ccagent.service.private_directories import make_directory
from ccagent.service.private_files import open_private

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_LONGEST_STATUS = 500


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


class Notifier:
    """Sends the daemon's state. Without $NOTIFY_SOCKET every method does nothing.

    The variables are removed from `environment`, because child processes must not notify. No method
    raises an exception or waits: a manager that does not listen must not stop the daemon.
    """

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        address, period, process = (environment.pop(name, "") for name in _VARIABLES)
        self._socket: socket.socket | None = None
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog: float | None = None
        """Seconds within which the manager expects a call of `alive`; None without a watchdog."""
        if not address.startswith(("/", "@")):
            if address:
                logger.warning("$NOTIFY_SOCKET: %s: neither a path nor abstract", address)
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        is_ours = not process or process == str(os.getpid())
        if is_ours and period.isascii() and period.isdigit() and int(period):
            self.watchdog = int(period) / 1e6

    def ready(self, status: str) -> None:
        """Send that the start, or a reload, is finished."""
        # Without line breaks: each line is a variable.
        self._send(f"READY=1\nSTATUS={printable(status)[:_LONGEST_STATUS]}")

    def reloading(self) -> None:
        """Send that a reload has started; `ready` reports its end."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Send that the daemon is about to end."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Send that the scheduling loop is alive, if the service has a watchdog."""
        if self.watchdog is not None:
            self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket. Later calls of all methods do nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto(text.encode("utf-8", "surrogateescape"), self._address)
