"""A thread that calls a function if it was not called for some time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

_JOIN = 2.0


class Poller:
    """Calls `function` when `interval` seconds have passed without a call of `note`.

    Energy counters wrap within minutes. The poller reads them between samples with a longer
    interval. `lock` prevents simultaneous readings by the function and the caller.
    """

    def __init__(self, function: Callable[[], None], interval: float, name: str) -> None:
        self.interval = interval
        self.lock = threading.Lock()
        self._function = function
        self._name = name
        self._noted = time.monotonic()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Return whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, once. Log if it can't be started."""
        if self.is_running or self._closing.is_set():
            return
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("%s: %s", self._name, error)
            return
        self._thread = thread

    def note(self) -> None:
        """Note that the counters were just read."""
        self._noted = time.monotonic()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN)

    def _run(self) -> None:
        while not self._closing.wait(max(0.001, self._noted + self.interval - time.monotonic())):
            if time.monotonic() < self._noted + self.interval:
                continue
            with self.lock:
                try:
                    self._function()
                except CcagentError as error:
                    logger.debug("%s: %s", self._name, error)
                except Exception:  # noqa: BLE001 - the thread goes on
                    logger.exception("%s: unforeseen error", self._name)
            self.note()
