"""Handler of `logging` that keeps warnings and errors for the agent `log`."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from ccagent.log_handlers import RateLimitFilter

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEPT = 1000
_LONGEST = 4096
_LEVELS = {"WARNING": "warn", "CRITICAL": "error"}
"""ClusterCockpit's names of levels (debug, info, warn, error) that differ from Python's."""


class MessageBuffer(logging.Handler):
    """Keeps messages until a sample takes them."""

    def __init__(self, level: str) -> None:
        super().__init__(level.upper())
        self.addFilter(RateLimitFilter())
        self._records: deque[tuple[str, str, float]] = deque(maxlen=_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message. Any thread may call this."""
        text = record.getMessage()[:_LONGEST]
        level = _LEVELS.get(record.levelname, record.levelname.lower())
        self._records.append((level, text, record.created))

    def take(self) -> Iterator[tuple[str, str, float]]:
        """Yield and remove the kept messages."""
        for _ in range(len(self._records)):
            yield self._records.popleft()
