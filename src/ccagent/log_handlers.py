"""Handlers of `logging` for the daemon and other long-running commands."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

Write = Callable[[int, str, float], None]
"""Writes one message: level, text, seconds since 1970."""


class SaidOnce(logging.Filter):
    """Passes equal warnings or errors (level and text) once per `period` seconds."""

    def __init__(self, period: float = 3600.0, remembered: int = 1000) -> None:
        super().__init__()
        self._period = period
        self._remembered = remembered
        self._said: dict[tuple[int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        if record.levelno < logging.WARNING:
            return True
        now = time.monotonic()
        key = (record.levelno, record.getMessage())
        said = self._said.get(key)
        if said is not None and now - said[0] < self._period:
            self._said[key] = (said[0], said[1] + 1)
            return False
        if len(self._said) >= self._remembered:
            self._said.clear()
        self._said[key] = (now, 0)
        if said is not None and said[1]:
            record.msg = f"{record.getMessage()} (and {said[1]} times in the last hour)"
            record.args = ()
        return True


class StderrHandler(logging.Handler):
    """Writes records as lines to stderr."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self.write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. The lines of a traceback are joined to one line."""
        text = record.getMessage()
        if record.exc_info:
            trace = logging.Formatter().formatException(record.exc_info)
            text += " " + " | ".join(line.strip() for line in trace.splitlines())
        self.write(record.levelno, text, record.created)


def send_to_stderr(library: logging.Logger, level: int, write: Write) -> None:
    """Send log records to stderr. Later calls keep the rate limit's memory."""
    own = [handler for handler in library.handlers if isinstance(handler, StderrHandler)]
    handler = own[0] if own else StderrHandler(write)
    handler.write = write
    handler.setLevel(logging.NOTSET)
    if not own:
        handler.addFilter(SaidOnce())
        library.addHandler(handler)
    library.propagate = False
    library.setLevel(level)
