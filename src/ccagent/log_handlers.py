"""Handlers of `logging` for the daemon and other long-running commands."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

Write = Callable[[int, str, float], None]
"""Writes one message: level, text, seconds since 1970."""

_PERIOD = 3600.0
_REMEMBERED = 1000


class RateLimitFilter(logging.Filter):
    """Passes equal warnings and errors, and all messages of one key, once per hour.

    Equal: in level and text. The first message after the period has the number of the others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[int, str], tuple[float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        key: str = getattr(record, "limited_by", "")
        if record.levelno < logging.WARNING and not key:
            return True
        # The filter of another handler may have added its number.
        text: str = record.__dict__.setdefault("unnumbered", record.getMessage())
        repeated = self._note((record.levelno, key or text))
        if repeated:
            like = "more like it" if key else "times"
            record.msg = f"{text} (and {repeated} {like} in the last hour)"
            record.args = ()
        return repeated >= 0

    def _note(self, known: tuple[int, str]) -> int:
        """Return the number of messages that were not logged since the last; -1: not this one."""
        now = time.monotonic()
        with self._lock:
            since, repeated = self._said.pop(known, (-_PERIOD, 0))
            if now - since < _PERIOD:
                self._said[known] = (since, repeated + 1)
                return -1
            if len(self._said) >= _REMEMBERED:
                del self._said[next(iter(self._said))]  # not repeated for longest
            self._said[known] = (now, 0)
            return repeated


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
        handler.addFilter(RateLimitFilter())
        library.addHandler(handler)
    library.propagate = False
    library.setLevel(level)
