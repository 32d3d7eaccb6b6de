"""One call in a thread of its own, so that a file system that hangs stalls nobody."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Calls `function`, and `when_done` afterwards. One that never returns is left behind.

    Raises RuntimeError if no thread can be started.
    """

    def __init__(self, function: Callable[[], T], when_done: Callable[[], None]) -> None:
        self._function = function
        self._when_done = when_done
        self._result: T
        self._error: BaseException | None = None
        self._done = threading.Event()
        threading.Thread(target=self._call, name="configuration", daemon=True).start()

    @property
    def is_done(self) -> bool:
        """True when `result` can be called."""
        return self._done.is_set()

    def result(self) -> T:
        """Return what the function returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def _call(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        self._done.set()
        self._when_done()
