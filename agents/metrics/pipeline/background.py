"""Calls in separate threads, so that a slow or hanging call stalls nobody."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from ccagent.errors import CcagentError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Background(Generic[T]):
    """One call, started at once. Raise ProgramError if no thread can be started."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._answer: list[T] = []
        self._error: CcagentError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise ProgramError(f"{name}: {error}") from error

    def is_busy(self, seconds: float) -> bool:
        """Wait for at most `seconds`. Return whether the call still runs."""
        self._thread.join(max(0.0, seconds))
        return self._thread.is_alive()

    def answer(self) -> T:
        """Return the result of a finished call, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def _run(self) -> None:
        try:
            self._answer.append(self._call())
        except CcagentError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - the caller waits for a result, whatever the error
            self._error = ProgramError(f"{type(error).__name__}: {error}")
