"""The Unix socket for requests of this node's commands, only for root.

A client sends one message, ends its sending side, and receives the answers. Each connection has a
dedicated thread: a hanging one does not delay others.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import threading
import time
from typing import TYPE_CHECKING

from ccagent.controls.leader import local_sender
from ccagent.controls.messages import encode_answer, read_lines
from ccagent.errors import ConfigurationError, ControlError, EncodingError
from ccagent.log import logger
from ccagent.machine.user_names import UserNames, look_up_user
from ccagent.service.private_directories import make_directory, open_directory

if TYPE_CHECKING:
    from ccagent.controls.responder import Responder

_LARGEST = 1024 * 1024
_MOST_CONNECTIONS = 8
_SECONDS = 5.0
_PAUSE = 1.0
_CREDENTIALS = struct.Struct("=iII")


class LocalSocket:
    """Listens at a path. Raise ConfigurationError if that fails."""

    def __init__(self, path: str, responder: Responder) -> None:
        self.responder = responder
        self._path = path
        self._is_closed = False
        self._names = UserNames(look_up_user)
        self._connections = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            make_directory(os.path.dirname(path), 0o755)
            os.close(open_directory(os.path.dirname(path)))
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    os.unlink(path)
            mask = os.umask(0o177)
            try:
                self._socket.bind(path)
            finally:
                os.umask(mask)
            self._socket.listen(_MOST_CONNECTIONS)
        except OSError as error:
            self._socket.close()
            raise ConfigurationError(
                f"controls.socket: {path}: {error.strerror or error}"
            ) from error
        threading.Thread(target=self._accept, name="controls-socket", daemon=True).start()

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:  # for example too many open files; the cause may be temporary
                if not self._is_closed:
                    logger.error("controls.socket: %s; retrying in 1 s", error.strerror)
                    time.sleep(_PAUSE)
                continue
            if not self._connections.acquire(timeout=_SECONDS):
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError as error:
                logger.error("controls.socket: no thread for a request: %s", error)
                connection.close()
                self._connections.release()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_SECONDS)
                self._answer(connection)
        except OSError as error:
            logger.debug("controls: local request: %s", error)
        finally:
            self._connections.release()

    def _answer(self, connection: socket.socket) -> None:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(raw)
        sender = local_sender(uid, self._names.find(uid) or f"user {uid}")
        received = bytearray()
        while part := connection.recv(65536):
            received += part
            if len(received) > _LARGEST:
                return
        for line in read_lines(bytes(received)):
            if self.responder.is_for_us(line):
                answer = self.responder.answer(line, sender)
                with contextlib.suppress(EncodingError):
                    connection.sendall(encode_answer(answer) + b"\n")


def ask_locally(path: str, body: bytes, seconds: float) -> bytes:
    """Return the answers of this node's service. Raise ControlError if none answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(seconds)
        try:
            connection.connect(path)
            connection.sendall(body)
            connection.shutdown(socket.SHUT_WR)
            parts: list[bytes] = []
            while part := connection.recv(65536):
                parts.append(part)
        except OSError as error:
            reason = error.strerror or "no answer"
            raise ControlError(
                f"{path}: {reason}: is ccagent-control.service running, and are you root?"
            ) from error
    return b"".join(parts)
