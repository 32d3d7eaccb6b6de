"""Calls of a library in a separate thread: a hanging call loses only its own result."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ccagent.machine.background import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_MOST_HUNG = 16
"""Maximum number of abandoned threads. Beyond it no job runs."""
_PART = 0.25
"""Maximum share of a job's time for one call."""


class _AbandonedError(BaseException):
    """Ends the thread of a call that exceeded its limit. `except Exception` does not catch it."""


class _Attempt:
    """A run of a job. current: the running call and its start."""

    def __init__(self) -> None:
        self.current: tuple[str, float] | None = None
        self.abandoned = threading.Event()


class LimitedCalls:
    """Runs jobs that make calls, each within a time limit.

    A job runs in a thread. A call that exceeds its limit is abandoned with its thread, and the job
    runs again without it. All jobs skip this call until it has returned.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hung: set[str] = set()
        self._abandoned: list[BackgroundCall[Any]] = []
        self._of_thread = threading.local()

    def run(self, job: Callable[[], T], seconds: float) -> T | None:
        """Return the result of a job, or raise its exception; None if it exceeds its time.

        Raise ProgramError if no thread can be started.
        """
        deadline = time.monotonic() + seconds
        self._abandoned = [running for running in self._abandoned if not running.is_done]
        while len(self._abandoned) < _MOST_HUNG and time.monotonic() < deadline:
            attempt = _Attempt()
            running = BackgroundCall(partial(self._run, job, attempt), "gpu calls")
            if self._is_finished(running, attempt, _PART * seconds, deadline):
                return running.result()
            self._abandoned.append(running)
        return None

    def _run(self, job: Callable[[], T], attempt: _Attempt) -> T:
        self._of_thread.attempt = attempt
        return job()

    def call(self, key: str, function: Callable[[], T]) -> T | None:
        """Return the result of a function, or raise its exception; None if it hangs.

        Only jobs may call this. Equal calls have equal keys.
        """
        attempt: _Attempt | None = getattr(self._of_thread, "attempt", None)
        if attempt is None:
            raise TypeError("a call without a job")
        if attempt.abandoned.is_set():
            raise _AbandonedError
        if key in self._hung:
            return None
        attempt.current = (key, time.monotonic())
        try:
            return function()
        finally:
            with self._lock:
                attempt.current = None
                if attempt.abandoned.is_set():
                    self._hung.discard(key)
                    raise _AbandonedError

    def _is_finished(
        self, running: BackgroundCall[Any], attempt: _Attempt, limit: float, deadline: float
    ) -> bool:
        """Wait for the end of a job. Abandon it when its time or a call's time is over."""
        while True:
            now = time.monotonic()
            current = attempt.current
            end = deadline if current is None else min(deadline, current[1] + limit)
            # Between two calls the next one can start at any time: poll soon.
            if running.wait(min(end - now, limit)):
                return True
            with self._lock:
                current = attempt.current
                now = time.monotonic()
                if now < deadline and (current is None or now < current[1] + limit):
                    continue
                attempt.abandoned.set()
                if current is not None:
                    self._hung.add(current[0])
                return False
