"""Logging to stderr in the form that systemd's journal understands; quiet by default.

Each line begins with a syslog priority (`<4>`) when stderr is not a terminal. A complaint that
repeats is said once an hour, so that a broken node doesn't fill the journal.
"""

from __future__ import annotations

import logging
import sys
import time

logger = logging.getLogger("ccagent")

_PRIORITIES = {
    logging.DEBUG: "<7>",
    logging.INFO: "<6>",
    logging.WARNING: "<4>",
    logging.ERROR: "<3>",
}


def printable(text: str) -> str:
    """Escape whatever could begin a new line or steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class _Formatter(logging.Formatter):
    def __init__(self, *, for_terminal: bool) -> None:
        super().__init__()
        self._for_terminal = for_terminal

    def format(self, record: logging.LogRecord) -> str:
        text = printable(record.getMessage())
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            text += " " + " | ".join(printable(line.strip()) for line in trace.splitlines())
        if self._for_terminal:
            return f"ccagent: {record.levelname.lower()}: {text}"
        return _PRIORITIES.get(record.levelno, "<6>") + text


class SaidOnce(logging.Filter):
    """Lets a complaint (same level, same format string and arguments) pass once per `period`."""

    def __init__(self, period: float = 3600.0, remembered: int = 1000) -> None:
        super().__init__()
        self._period = period
        self._remembered = remembered
        self._said: dict[tuple[int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is said."""
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


def say(text: str) -> None:
    """Write to the log what somebody has asked for, however quiet it is."""
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, text, (), None)
    logger.handle(record)


def configure(verbosity: int = 0) -> None:
    """Send the log to stderr: warnings, with 1 information too, with 2 everything."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(for_terminal=sys.stderr.isatty()))
    handler.addFilter(SaidOnce())
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))
