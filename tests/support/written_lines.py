"""The lines that a daemon would write to its log, with the limits of repeated lines."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from ccagent.log import logger
from ccagent.log_handlers import RateLimitFilter, StderrHandler

if TYPE_CHECKING:
    from collections.abc import Generator


@contextlib.contextmanager
def written_lines() -> Generator[list[str]]:
    """Yield the list that gets each written line."""
    lines: list[str] = []
    handler = StderrHandler(lambda level, text, when: lines.append(text))
    handler.addFilter(RateLimitFilter())
    library = logger.library()
    level = library.level
    library.setLevel(logging.WARNING)
    library.addHandler(handler)
    try:
        yield lines
    finally:
        library.removeHandler(handler)
        library.setLevel(level)
