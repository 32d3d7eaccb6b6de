"""Calls of a library in a separate thread: a hanging call costs only its own result."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_MOST_HUNG = 16
"""Most abandoned threads at a time. With more of them no job runs."""
_PART = 0.25
"""Share of the time of a job that one call may use."""


class _AbandonedError(BaseException):
    """Ends the thread of a call that took too long. No `except Exception` may catch it."""


class LimitedCalls:
    """Runs jobs that make calls, each within a time limit.

    A job runs in a thread. A call that takes too long is abandoned with its thread, and the job
    runs again without this call, as all jobs do until the call has returned.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hung: set[str] = set()
        self._abandoned: list[threading.Thread] = []

    def run(self, job: Callable[[], T], seconds: float) -> T | None:
        """Return what a job returns, or raise what it raises; None if it takes too long."""
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
        """Return what a function returns, or raise what it raises; None if it hangs.

        Only jobs may call it. The key says which calls are the same.
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
        """Wait for the end of a job, or abandon it at the end of its time or a call's."""
        while True:
            now = time.monotonic()
            current = attempt.current
            end = deadline if current is None else min(deadline, current[1] + limit)
            # Between two calls the next one may begin at any moment: poll soon.
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
        """Run the job. An abandoned job has no result."""
        try:
            self._results.append(self._job())
        except _AbandonedError:
            return
        except Exception as error:  # noqa: BLE001 - raised again where the job was asked for
            self._error = error
        self.done.set()

    def result(self) -> T:
        """Return what the job returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._results[0]
