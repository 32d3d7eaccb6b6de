"""State notifications to the service manager (the protocol of sd_notify).

Source: sd_notify(3), sd_watchdog_enabled(3). A message is one datagram of lines `KEY=value` to the
Unix socket in $NOTIFY_SOCKET. A name with @ at the start is in the abstract namespace.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

from ccagent.log import logger, printable

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_LONGEST_STATUS = 500


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
        self._send(f"READY=1\n{_status(status)}")

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


def _status(text: str) -> str:
    """Return the line for `systemctl status`, with line breaks replaced."""
    return f"STATUS={printable(text)[:_LONGEST_STATUS]}"
