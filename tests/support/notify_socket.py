"""The socket that systemd would listen at."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Self


class NotifySocket:
    """Receives what a service tells its manager; give `name` to it as $NOTIFY_SOCKET."""

    def __init__(self, name: Path | str) -> None:
        self.name = str(name)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.name.replace("@", "\0", 1) if self.name[0] == "@" else self.name)
        self._socket.settimeout(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def receive(self) -> str:
        """The next message. Raises TimeoutError after ten seconds."""
        return self._socket.recv(4096).decode()

    def next_but(self, *uninteresting: str) -> str:
        """The next message that isn't one of these."""
        while (message := self.receive()) in uninteresting:
            pass
        return message

    def pending(self) -> list[str]:
        """All messages that have come and were not received."""
        messages: list[str] = []
        self._socket.settimeout(0)
        try:
            while True:
                messages.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return messages
        finally:
            self._socket.settimeout(10)
