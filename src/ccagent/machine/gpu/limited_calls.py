"""Calls of a library in a thread of their own: a call that hangs costs only what it asks for."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_MOST_HUNG = 16
"""Threads that may hang at the same time; with more of them nothing is called."""
_PART = 0.25
"""What one call may take of the time of all."""


class LimitedCalls:
    """Makes calls one after the other, each within a time limit.

    A call that takes longer is abandoned with its thread. The same call, by its key, is not made
    again before that thread has returned.
    """

    def __init__(self) -> None:
        self._free: _Worker | None = None
        self._hung: dict[str, _Worker] = {}
        self._limit = 0.0
        self._deadline = 0.0

    def begin(self, seconds: float) -> None:
        """Start a round: all its calls may take this long together."""
        self._limit = _PART * seconds
        self._deadline = time.monotonic() + seconds

    def call(self, key: str, function: Callable[[], T]) -> T | None:
        """Return what the function returns, or raise what it raises; None if it takes too long."""
        hung = self._hung.get(key)
        if hung is not None:
            if not hung.has_returned():
                return None
            del self._hung[key]
            hung.end()
        seconds = min(self._limit, self._deadline - time.monotonic())
        if seconds <= 0 or len(self._hung) >= _MOST_HUNG:
            return None
        if self._free is None:
            self._free = _Worker()
        try:
            value, error = self._free.run(function, seconds)
        except queue.Empty:
            self._hung[key], self._free = self._free, None
            return None
        if error is not None:
            raise error
        return cast("T", value)


class _Worker:
    """A thread that makes one call at a time. Its results are pairs of value and error."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="gpu calls", daemon=True).start()

    def run(self, function: Callable[[], Any], seconds: float) -> tuple[Any, Exception | None]:
        """Return the result of a call. Raises queue.Empty if it takes longer."""
        self._calls.put(function)
        return self._results.get(timeout=seconds)

    def has_returned(self) -> bool:
        """Return whether the call that took too long is over."""
        return not self._results.empty()

    def end(self) -> None:
        """End the thread."""
        self._calls.put(None)

    def _work(self) -> None:
        while (function := self._calls.get()) is not None:
            try:
                self._results.put((function(), None))
            except Exception as error:  # noqa: BLE001 - raised again where the call was asked for
                self._results.put((None, error))
