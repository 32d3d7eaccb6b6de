"""The log: lines on stderr; by default warnings and errors.

Under systemd each line starts with a syslog priority (`<4>`). Repeated warnings are rate-limited: a
broken node must not fill the journal. Importing `logging` takes 4 ms, so a one-shot command writes
its few lines without it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

LogLevel = Literal["error", "warning", "info", "debug"]
LogFormat = Literal["auto", "journal", "text", "json"]

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""The levels with the numbers of `logging`."""

_LEVELS: dict[str, int] = {"error": ERROR, "warning": WARNING, "info": INFO, "debug": DEBUG}
_NAMES = {number: name for name, number in _LEVELS.items()}
_PRIORITIES = {DEBUG: "<7>", INFO: "<6>", WARNING: "<4>", ERROR: "<3>"}
_REMEMBERED = 1000


def printable(text: str) -> str:
    """Escape characters that could start a new line or control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def is_journal(environment: Mapping[str, str], descriptor: int = 2) -> bool:
    """Return whether a descriptor is systemd's stream to the journal.

    Source: systemd.exec(5), $JOURNAL_STREAM.
    """
    named = environment.get("JOURNAL_STREAM")
    if not named:
        return False
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return named == f"{status.st_dev}:{status.st_ino}"


def line_of(level: int, text: str, form: LogFormat, seconds: float) -> str:
    """Return a line of the log, without line break. seconds: its time since 1970."""
    if form == "json":
        from datetime import UTC, datetime
        from json import dumps

        moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
        record = {"time": moment.replace("+00:00", "Z"), "level": _name(level), "message": text}
        return dumps(record)  # only ASCII: it cannot start a line or control a terminal
    if form == "journal":
        return _PRIORITIES.get(level, "<6>") + printable(text)
    return f"ccagent: {_name(level)}: {printable(text)}"


def write_error(text: str) -> None:
    """Write the final error of a command in the format of the log."""
    form = _resolve(_configured[2])
    if form == "text":
        write_stderr(f"ccagent: {printable(text)}")
    else:
        from time import time

        write_stderr(line_of(ERROR, text, form, time()))


def write_stderr(line: str) -> None:
    """Write a line to stderr, unless it is closed."""
    with suppress(OSError, ValueError, AttributeError):  # AttributeError: the process was started
        # without stderr
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _resolve(form: LogFormat) -> LogFormat:
    """Return the format for `auto` in this process."""
    if form != "auto":
        return form
    return "journal" if is_journal(os.environ) else "text"


def _name(level: int) -> str:
    return _NAMES.get(level, "info")


class _Brief:
    """The log of a one-shot command: one write per line, each text or key once."""

    def __init__(self, least: int, form: LogFormat) -> None:
        self._least = least
        self._form: LogFormat = form
        self._written: set[tuple[int, str]] = set()

    def write(self, level: int, text: str, key: str) -> None:
        known = (level, key or text)
        if level < self._least or known in self._written or len(self._written) >= _REMEMBERED:
            return
        self._written.add(known)
        from time import time

        write_stderr(line_of(level, text, self._form, time()))


class Log:
    """The log of ccagent. Messages go to `logging` unless `configure` chose a brief log.

    Equal warnings are written once per hour, with their number. A message with a `key` is written
    once per hour and key, whatever its text: for texts with names or numbers that a sender chooses.
    A key must come from a bounded set, never from a sender.
    """

    name = "ccagent"

    def __init__(self) -> None:
        self._brief: _Brief | None = None

    def debug(self, text: str, *values: object) -> None:
        """Log a detail for debugging."""
        self.log(DEBUG, text, *values)

    def info(self, text: str, *values: object) -> None:
        """Log an expected event."""
        self.log(INFO, text, *values)

    def warning(
        self, text: str, *values: object, key: str = "", exc_info: bool | BaseException = False
    ) -> None:
        """Log a condition that needs attention."""
        self.log(WARNING, text, *values, key=key, exc_info=exc_info)

    def error(
        self, text: str, *values: object, key: str = "", exc_info: bool | BaseException = False
    ) -> None:
        """Log a failure."""
        self.log(ERROR, text, *values, key=key, exc_info=exc_info)

    def exception(self, text: str, *values: object, key: str = "") -> None:
        """Log a failure with the traceback of the current exception."""
        self.log(ERROR, text, *values, key=key, exc_info=True)

    def log(
        self,
        level: int,
        text: str,
        *values: object,
        key: str = "",
        exc_info: bool | BaseException = False,
    ) -> None:
        """Log a message of a level; `exc_info` adds the traceback of the current exception."""
        if self._brief is None or exc_info:
            more = {"limited_by": key} if key else None
            self.library().log(level, text, *values, exc_info=exc_info or None, extra=more)
        else:
            self._brief.write(level, text % values if values else text, key)

    def library(self) -> logging.Logger:
        """Return the logger of `logging`. From now on it gets every message."""
        import logging

        if self._brief is not None:
            self._brief = None
            configure(*_configured)
        return logging.getLogger(self.name)

    def be_brief(self, least: int, form: LogFormat) -> None:
        """Write messages of at least this level without `logging`."""
        self._brief = _Brief(least, form)


logger = Log()

_configured: tuple[int, LogLevel, LogFormat] = (0, "warning", "auto")


def say(text: str, key: str = "") -> None:
    """Log a requested text at any level of the log; with a key, once per hour and key."""
    library = logger.library()
    more = {"limited_by": key} if key else None
    library.handle(library.makeRecord(library.name, INFO, "", 0, text, (), None, extra=more))


def read_choice(table: Mapping[str, object]) -> tuple[LogLevel, LogFormat]:
    """Return level and format in a configuration. `ccagent config check` refuses invalid values."""
    level, form = table.get("log-level"), table.get("log-format")
    return (
        level if level in ("error", "warning", "info", "debug") else "warning",
        form if form in ("auto", "journal", "text", "json") else "auto",
    )


def configure(
    verbosity: int = 0,
    level: LogLevel = "warning",
    form: LogFormat = "auto",
    *,
    is_brief: bool = False,
) -> None:
    """Send the log to stderr. `verbosity`: 1 for information too, 2 for everything.

    is_brief: for a one-shot command.
    """
    global _configured  # noqa: PLW0603 - there is one log
    _configured = (verbosity, level, form)
    least = min(_LEVELS[level], {0: ERROR, 1: INFO}.get(verbosity, DEBUG))
    form = _resolve(form)
    if is_brief and least >= WARNING:
        logger.be_brief(least, form)
        return
    from ccagent.log_handlers import send_to_stderr

    def write(level: int, text: str, when: float) -> None:
        write_stderr(line_of(level, text, form, when))

    send_to_stderr(logger.library(), least, write)
