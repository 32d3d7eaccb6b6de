"""Calls of a library in a separate thread: a hanging call loses only its own result."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_MOST_HUNG = 16
"""Maximum number of abandoned threads. Beyond it no job runs."""
_PART = 0.25
"""Maximum share of a job's time for one call."""


class _AbandonedError(BaseException):
    """Ends the thread of a call that exceeded its limit. `except Exception` does not catch it."""


class LimitedCalls:
    """Runs jobs that make calls, each within a time limit.

    A job runs in a thread. A call that exceeds its limit is abandoned with its thread, and the job
    runs again without it. All jobs skip this call until it has returned.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hung: set[str] = set()
        self._abandoned: list[threading.Thread] = []

    def run(self, job: Callable[[], T], seconds: float) -> T | None:
        """Return the result of a job, or raise its exception; None if it exceeds its time."""
        deadline = time.monotonic() + seconds
        self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
        while len(self._abandoned) < _MOST_HUNG and time.monotonic() < deadline:
            attempt = _Attempt(job)
            attempt.start()
            if self._is_finished(attempt, _PART * seconds, deadline):
                return attempt.result()
            self._abandoned.append(attempt)
        return None

    def call(self, key: str, function: Callable[[], T]) -> T | None:
        """Return the result of a function, or raise its exception; None if it hangs.

        Only jobs may call this. Equal calls have equal keys.
        """
        attempt = threading.current_thread()
        if not isinstance(attempt, _Attempt):
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

    def _is_finished(self, attempt: _Attempt[T], limit: float, deadline: float) -> bool:
        """Wait for the end of a job. Abandon it when its time or a call's time is over."""
        while True:
            now = time.monotonic()
            current = attempt.current
            end = deadline if current is None else min(deadline, current[1] + limit)
            # Between two calls the next one can start at any time: poll soon.
            if attempt.done.wait(max(0.0, min(end - now, limit))):
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


class _Attempt(threading.Thread, Generic[T]):
    """A thread that runs a job once. current: the running call and its start."""

    def __init__(self, job: Callable[[], T]) -> None:
        super().__init__(name="gpu calls", daemon=True)
        self._job = job
        self._results: list[T] = []
        self._error: Exception | None = None
        self.done = threading.Event()
        self.current: tuple[str, float] | None = None
        self.abandoned = threading.Event()

    def run(self) -> None:
        """Run the job. The result of an abandoned job is dropped."""
        try:
            self._results.append(self._job())
        except _AbandonedError:
            return
        except Exception as error:  # noqa: BLE001 - raised again where the job was asked for
            self._error = error
        self.done.set()

    def result(self) -> T:
        """Return the job's result, or raise its exception."""
        if self._error is not None:
            raise self._error
        return self._results[0]
