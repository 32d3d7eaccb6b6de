"""Repeated calls in a background thread that never overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from ccagent.errors import CcagentError
from ccagent.machine.background import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PATIENCE = 0.1
"""Seconds that a sample waits for a call. A quick call returns in the same sample."""
GRACE = 1.0
"""Seconds allowed for ending a program."""


class RepeatedCall(Generic[T]):
    """One call at a time, started once per time slot of `every` seconds.

    name: name of the call in messages; empty if the caller adds it. every: 0 for each sample.
    """

    def __init__(self, name: str, every: float) -> None:
        self.name = name
        self._every = every
        self._slot: int | None = None
        self._running: BackgroundCall[T] | None = None
        self._results: list[T] = []

    def begin(
        self, now: float, call: Callable[[], T], errors: list[str], *, is_due: bool = False
    ) -> None:
        """Start `call` if `now` is in a new time slot or `is_due` is True.

        now: seconds since 1970.
        """
        slot = int(now // self._every) if self._every else None
        if slot is not None and slot == self._slot and not is_due:
            return
        self._slot = slot
        self._collect(0.0, errors)
        if self._running is not None:
            errors.append(self._message("still running; not started again"))
            return
        try:
            self._running = BackgroundCall(call, self.name or "background call")
        except CcagentError as error:
            errors.append(str(error))

    def result(self, seconds: float, errors: list[str]) -> T | None:
        """Return the newest result not returned before; None without one.

        seconds: time to wait for a running call. Failed calls are in `errors`.
        """
        self._collect(seconds, errors)
        results, self._results = self._results, []
        return results[-1] if results else None

    def is_over(self) -> bool:
        """Wait for a stopping call to end. Return whether it has ended."""
        return self._running is None or self._running.wait(2 * GRACE)

    def _collect(self, seconds: float, errors: list[str]) -> None:
        running = self._running
        if running is None or not running.wait(seconds):
            return
        self._running = None
        try:
            self._results = [running.checked_result()]
        except CcagentError as error:
            errors.append(self._message(str(error)))

    def _message(self, text: str) -> str:
        return f"{self.name}: {text}" if self.name else text
