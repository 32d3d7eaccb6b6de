"""A separate Python process for a library that may hang or crash.

Questions and answers are bytes on a socket pair, each preceded by its length in four bytes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import time
from typing import TYPE_CHECKING, NoReturn

from ccagent.errors import ProgramError
from ccagent.machine.interpreter import python
from ccagent.machine.program import describe_end

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH = struct.Struct("!I")
_LARGEST = 64 * 1024 * 1024
_FIRST_PAUSE = 10.0
_LONGEST_PAUSE = 3600.0
_GRACE = 1.0


class Helper:
    """A process that runs `target` (`module:function`) with the arguments `arguments`.

    `start` or the first question starts the process. If it ends, or needs more than `time_limit`
    seconds for an answer, a later question restarts it. The first restart is immediate; later ones
    follow pauses that double up to an hour. While a process can't be killed, no second one is
    started. Errors start with `name`.
    """

    def __init__(
        self, name: str, target: str, arguments: tuple[str, ...], *, time_limit: float
    ) -> None:
        self._name = name
        self._target = target
        self._arguments = arguments
        self._time_limit = time_limit
        self._running: _Running | None = None
        self._left: subprocess.Popen[bytes] | None = None
        self._asked_at: float | None = None
        self._pause = 0.0
        self._not_before = 0.0

    @property
    def is_asked(self) -> bool:
        """Return whether an answer is pending."""
        return self._asked_at is not None

    def start(self) -> None:
        """Start the process unless it runs. Raise ProgramError if that fails or must wait."""
        self._ensure_running()

    def ask(self, question: bytes) -> None:
        """Send a question, unless an answer is pending. Raise ProgramError if that fails."""
        if self.is_asked:
            return
        running = self._ensure_running()
        try:
            # A question is a short text and fits into every socket's buffer.
            running.socket.sendall(_LENGTH.pack(len(question)) + question)
        except OSError:
            self._fail(running)
        self._asked_at = time.monotonic()

    def answer(self, seconds: float) -> bytes | None:
        """Wait for the answer for at most some seconds. Return None if it is still pending.

        Raise ProgramError if the process has died or exceeded its time limit.
        """
        running = self._running
        if running is None or self._asked_at is None:
            return None
        deadline = time.monotonic() + seconds
        while True:
            try:
                answer = running.receive()
            except OSError:
                self._fail(running)
            if answer is not None:
                self._asked_at = None
                self._pause = 0.0
                return answer
            now = time.monotonic()
            if now - self._asked_at > self._time_limit:
                self._fail(running, f"no answer after {self._time_limit:g} s")
            if now >= deadline:
                return None
            poll = select.poll()
            poll.register(running.socket, select.POLLIN)
            poll.poll(max(1.0, 1000 * (deadline - now)))

    def close(self) -> None:
        """End the process. It ends when the socket is closed, unless it hangs."""
        if self._running is not None:
            self._end(self._running, grace=0.0 if self.is_asked else _GRACE)

    def _ensure_running(self) -> _Running:
        if self._running is not None:
            return self._running
        if self._left is not None and self._left.poll() is None:
            raise ProgramError(f"{self._name}: it hangs in the kernel and can't be ended")
        self._left = None
        wait = self._not_before - time.monotonic()
        if wait > 0:
            raise ProgramError(f"{self._name}: failed, is tried again in {wait:.0f} s")
        try:
            self._running = _Running(self._target, self._arguments)
        except OSError as error:
            self._postpone()
            raise ProgramError(f"{self._name}: {error.strerror}") from error
        return self._running

    def _fail(self, running: _Running, reason: str = "") -> NoReturn:
        """End the process, postpone its restart, and raise ProgramError with the reason."""
        self._end(running, grace=0.0 if reason else _GRACE)
        self._postpone()
        status = running.process.returncode
        if not reason and status is not None:
            reason = describe_end(status)
        raise ProgramError(f"{self._name}: {reason or 'broke off'}")

    def _end(self, running: _Running, *, grace: float) -> None:
        self._running = None
        self._asked_at = None
        if not running.end(grace):
            self._left = running.process

    def _postpone(self) -> None:
        self._not_before = time.monotonic() + self._pause
        self._pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * self._pause))


class _Running:
    """The process, and the parent's end of the socket pair. Methods raise OSError."""

    def __init__(self, target: str, arguments: tuple[str, ...]) -> None:
        self.socket, theirs = socket.socketpair()
        self._received = bytearray()
        with theirs:
            command = [*python(_program(target, theirs.fileno())), *arguments]
            try:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError:
                self.socket.close()
                raise
        self.socket.setblocking(False)

    def receive(self) -> bytes | None:
        """Receive data. Return the answer if it is complete. Raise OSError at end of stream."""
        received = self._received
        while True:
            if len(received) >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(received)
                if size > _LARGEST:
                    raise OSError(f"an answer of {size} bytes")
                end = _LENGTH.size + size
                if len(received) >= end:
                    answer = bytes(received[_LENGTH.size : end])
                    del received[:end]
                    return answer
            try:
                part = self.socket.recv(65536)
            except BlockingIOError:
                return None
            if not part:
                raise OSError("it has ended")
            received += part

    def end(self, grace: float) -> bool:
        """Close the socket, so that the process ends. Kill it after `grace` seconds.

        Return False if the process could not be killed because it is in uninterruptible sleep.
        """
        self.socket.close()
        for seconds in (grace, _GRACE):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
                return True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return False


def serve(descriptor: int, reply: Callable[[bytes], bytes]) -> None:
    """Answer questions until the socket is closed. A helper's function calls this."""
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
            (size,) = _LENGTH.unpack(head)
            answer = reply(stream.read(size))
            stream.write(_LENGTH.pack(len(answer)) + answer)
            stream.flush()


def _program(target: str, descriptor: int) -> str:
    """Return a Python program that calls the target with the descriptor and the arguments."""
    module, _, function = target.partition(":")
    return f"from {module} import {function}; {function}({descriptor}, *sys.argv[1:])"
