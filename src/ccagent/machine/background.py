"""Calls in separate threads: a hanging call does not stall the caller."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from ccagent.errors import CcagentError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A call that starts at once in a thread. If it never returns, the thread is abandoned.

    name: of the thread. when_done: called after the call. Raise ProgramError if no thread can be
    started.
    """

    def __init__(
        self, function: Callable[[], T], name: str, when_done: Callable[[], None] | None = None
    ) -> None:
        self._function = function
        self._when_done = when_done
        self._result: T
        self._error: BaseException | None = None
        self._done = threading.Event()
        try:
            threading.Thread(target=self._call, name=name, daemon=True).start()
        except RuntimeError as error:
            raise ProgramError(f"{name}: {error}") from error

    @property
    def is_done(self) -> bool:
        """Return whether `result` can be called."""
        return self._done.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, at most `seconds`. Return whether the call is done."""
        return self._done.wait(max(0.0, seconds))

    def result(self) -> T:
        """Return the result of the function, or raise its exception."""
        if self._error is not None:
            raise self._error
        return self._result

    def checked_result(self) -> T:
        """Return the result. Raise ProgramError in place of an unforeseen error."""
        try:
            return self.result()
        except CcagentError:
            raise
        except Exception as error:
            raise ProgramError(f"{type(error).__name__}: {error}") from error

    def _call(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        self._done.set()
        if self._when_done is not None:
            self._when_done()
