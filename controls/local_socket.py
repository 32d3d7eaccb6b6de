"""The Unix socket for requests of this node's commands, only for root; calls with a time limit.

A client sends one message, ends its sending side, and receives the answers. Each message has a
thread: a hanging one does not delay others, and is abandoned after the time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING, Any, TypeVar

from ccagent.controls.messages import encode_line, read_lines
from ccagent.controls.policy import RequestSender
from ccagent.errors import ConfigurationError, EncodingError
from ccagent.log import logger
from ccagent.machine.background import BackgroundCall
from ccagent.machine.user_names import UserNames, look_up_user
from ccagent.service.private_directories import make_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.controls.responder import Responder


T = TypeVar("T")

_LARGEST = 1024 * 1024
_MOST_CONNECTIONS = 8
_SECONDS = 5.0
_ANSWER_WITHIN = 60.0
_CREDENTIALS = struct.Struct("=iII")
_MOST_HANGING = 16


class BoundedCalls:
    """Calls in separate threads, for the event loop. The process ends if many of them hang."""

    def __init__(self) -> None:
        self._hanging: list[BackgroundCall[Any]] = []

    async def call(self, function: Callable[[], T], seconds: float | None) -> T:
        """Return the result of a function, or raise its exception.

        Raise TimeoutError after the time limit, if there is one; the thread is abandoned.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, done)

        call = BackgroundCall(function, "controls", tell)
        await asyncio.wait({done}, timeout=seconds)
        if call.is_done:
            return call.result()
        self._hanging = [*(each for each in self._hanging if not each.is_done), call]
        if len(self._hanging) > _MOST_HANGING:
            end_process(f"{len(self._hanging)} requests hang")
        raise TimeoutError


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def end_process(reason: str) -> None:
    """End the process at once: threads that hang would stop an ordinary exit."""
    logger.error("controls: %s: the service ends, to be started again", reason)
    os._exit(1)


class LocalSocket:
    """Answers requests at a path."""

    def __init__(self, path: str, responder: Responder, calls: BoundedCalls) -> None:
        self.responder = responder
        self._path = path
        self._calls = calls
        self._names = UserNames(look_up_user)
        self._connections = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Answer requests from now on. Raise ConfigurationError if the socket can't be made.

        The socket of a killed service is replaced.
        """
        mask = os.umask(0o177)
        try:
            make_directory(os.path.dirname(self._path), 0o755)
            self._server = await asyncio.start_unix_server(
                self._serve, self._path, backlog=_MOST_CONNECTIONS
            )
        except OSError as error:
            raise ConfigurationError(
                f"controls.socket: {self._path}: {error.strerror or error}"
            ) from error
        finally:
            os.umask(mask)

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= _MOST_CONNECTIONS:
                received = await asyncio.wait_for(_read_all(reader), _SECONDS)
                uid = _peer(writer)
                writer.write(
                    await self._calls.call(lambda: self._answer(received, uid), _ANSWER_WITHIN)
                )
                await asyncio.wait_for(writer.drain(), _SECONDS)
        except (OSError, TimeoutError) as error:
            logger.debug("controls: local request: %s", error)
        finally:
            self._connections -= 1
            writer.close()

    def _answer(self, received: bytes, uid: int) -> bytes:
        name = self._names.find(uid) or f"user {uid}"
        sender = RequestSender(f"{name} on this node", frozenset(), is_root=uid == 0)
        answers: list[str] = []
        for line in read_lines(received):
            if self.responder.is_for_us(line):
                with contextlib.suppress(EncodingError):
                    answers.append(encode_line(self.responder.answer(line, sender)) + "\n")
        return "".join(answers).encode()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    """Return a message; nothing of one that is too large."""
    received = bytearray()
    while piece := await reader.read(65536):
        received += piece
        if len(received) > _LARGEST:
            return b""
    return bytes(received)


def _peer(writer: asyncio.StreamWriter) -> int:
    """Return the user id of the client."""
    peer: socket.socket = writer.get_extra_info("socket")
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return int(uid)
