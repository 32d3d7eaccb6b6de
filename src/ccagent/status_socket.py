"""The socket through which a running daemon tells its state to `ccagent status`."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import NotHereError, NotPermittedError, UnparsableError
from ccagent.log import logger
from ccagent.status import parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.status import Status

_PATIENCE = 2.0
_LARGEST = 1024 * 1024
_MODE = 0o660


class StatusSocket:
    """Answers everybody who connects with the state as JSON, one after the other.

    Only owner and group may connect. Where it can't be opened, that is said and all else works.
    """

    def __init__(self, path: str, report: Callable[[], Status]) -> None:
        self._path = path
        self._report = report
        self._socket: socket.socket | None = None
        if not os.path.isdir(os.path.dirname(path)):
            logger.debug("status-socket: %s: there is no such directory; no status", path)
            return
        try:
            self._socket = _listening(path)
        except OSError as error:
            logger.warning("status-socket: %s: %s; no status", path, error.strerror or error)
            return
        self._thread = threading.Thread(target=self._serve, name="status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._socket is None:
            return
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        # Wakes the thread, which closing alone would not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(2 * _PATIENCE)
        self._socket.close()

    def _serve(self) -> None:
        assert self._socket is not None  # noqa: S101 - the thread starts after it was made
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:
                return
            with connected, contextlib.suppress(OSError):
                connected.settimeout(_PATIENCE)
                connected.sendall(self._report().json())


def read_status(path: str) -> Status:
    """Ask a running daemon for its state.

    Raises NotHereError if none listens, NotPermittedError, UnparsableError.
    """
    content = b""
    try:
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(_PATIENCE)
            connected.connect(path)
            while len(content) < _LARGEST and (part := connected.recv(65536)):
                content += part
        return parse(content)
    except PermissionError:
        raise NotPermittedError(
            f"{path}: only the daemon's user, its group and root may ask"
        ) from None
    except OSError as error:
        raise NotHereError(
            f"{path}: no running daemon answers: {error.strerror or error}"
        ) from None
    except msgspec.MsgspecError as error:
        raise UnparsableError(
            f"{path}: what answers is no ccagent of this version: {error}"
        ) from None


def _listening(path: str) -> socket.socket:
    """Listen; take over a socket that a killed daemon has left. Raises OSError."""
    made = socket.socket(socket.AF_UNIX)
    try:
        try:
            made.bind(path)
        except OSError:
            with socket.socket(socket.AF_UNIX) as other:
                other.settimeout(_PATIENCE)
                if other.connect_ex(path) == 0:
                    raise OSError(0, "another daemon listens there") from None
            os.unlink(path)
            made.bind(path)
        os.chmod(path, _MODE)
        made.listen(4)
    except OSError:
        made.close()
        raise
    return made
