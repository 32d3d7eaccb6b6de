"""Signal handling at the start and the end of the program, and in the daemon; its wake-up."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from ccagent.errors import ProgramError

if TYPE_CHECKING:
    from types import FrameType


_LONGEST_LIMIT = 1e9
"""A number of seconds that any timer of the kernel accepts."""

_OF_THE_DAEMON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
INTERRUPTED = 128 + signal.SIGINT
CLOSED_PIPE = 128 + signal.SIGPIPE
"""Exit statuses that a shell shows for a program ended by these signals."""


def allow_interrupts() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again: commands can then clean up."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def release_blocked() -> None:
    """Unblock the signals blocked since the start of the program."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_DAEMON)


def ignore_signals() -> None:
    """Ignore signals from now on: the daemon has ended, and the process is about to end."""
    # Python reports a signal that arrives while its handler is replaced as an error.
    signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_DAEMON)
    for number in _OF_THE_DAEMON:
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)


class ReceivedSignals:
    """The daemon's received signals that `take` has not returned yet.

    The handler is a method of `dict`, not a Python function. Further signals interrupt a Python
    function: handlers nest, and many signals at once raise RecursionError anywhere.
    """

    def __init__(self) -> None:
        self._frames: dict[int, FrameType | None] = {}

    def receive(self, wake_up: int, *, respects_nohup: bool) -> None:
        """Receive signals from now on. Each signal writes a byte to the descriptor `wake_up`.

        respects_nohup: SIGHUP stays ignored if it is already ignored.
        """
        is_detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.set_wakeup_fd(wake_up, warn_on_full_buffer=False)
        for number in _OF_THE_DAEMON:
            if number != signal.SIGHUP or not (is_detached and respects_nohup):
                signal.signal(number, self._frames.__setitem__)

    def take(self) -> set[int]:
        """Return the numbers of the signals received since the last call."""
        numbers = set(self._frames)
        for number in numbers:
            del self._frames[number]
        return numbers


class _TimeOver(BaseException):
    """A BaseException, because agents and controls catch Exception."""


def _stop_timer() -> None:
    """Stop the timer: while Python exits, its signal has the default action, which kills."""
    signal.setitimer(signal.ITIMER_REAL, 0)


class TimeLimit:
    """Interrupts its body after a time limit, unless it hangs in the kernel. For the main thread.

    Raise ProgramError with `text` then. It can be entered repeatedly: the timer goes on until it
    finds no body, because setting it costs more than a short read. A later body than the first may
    take a quarter of the limit longer.
    """

    def __init__(self, seconds: float, text: str) -> None:
        self._seconds = min(seconds, _LONGEST_LIMIT)
        self._text = text
        self._began: float | None = None
        self._is_set = False
        atexit.unregister(_stop_timer)  # once, however many limits there are
        atexit.register(_stop_timer)

    def __enter__(self) -> None:
        self._began = time.monotonic()
        if not self._is_set:
            self._is_set = True
            signal.signal(signal.SIGALRM, self._look)
            signal.setitimer(signal.ITIMER_REAL, self._seconds, self._seconds / 4)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        self._began = None
        if kind is _TimeOver:
            raise ProgramError(self._text) from error

    def _look(self, _number: int, _frame: FrameType | None) -> None:
        if self._began is None:
            _stop_timer()
            self._is_set = False
        elif time.monotonic() - self._began >= self._seconds:
            raise _TimeOver


class WakeUp:
    """Makes `descriptor` readable. After `close` every method does nothing."""

    def __init__(self) -> None:
        self.descriptor, self.writer = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self.writer, False)
        self._is_open = True

    def set(self) -> None:
        """Make the descriptor readable. A signal handler may call this at any time."""
        # A full pipe is already readable.
        if self._is_open:
            with contextlib.suppress(OSError):
                os.write(self.writer, b"x")

    def clear(self) -> None:
        """Make the descriptor unreadable until the next `set`."""
        with contextlib.suppress(OSError):
            while os.read(self.descriptor, 512):
                pass

    def close(self) -> None:
        """Close the pipe."""
        if self._is_open:
            self._is_open = False
            os.close(self.descriptor)
            os.close(self.writer)
