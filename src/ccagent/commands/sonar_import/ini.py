"""Parser of the configuration of Sonar's daemon, an ini file.

Source: Sonar 0.19, doc/HOWTO-DAEMON.md. Lines are blank, comments (`#`), `[section]` or `name =
value`. A value may have quotes of three kinds, without escapes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ccagent.errors import UnparsableError

ALIASES = {"ps": "sample", "slurm": "jobs", "paths": "programs"}
"""Older names of sections."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_QUOTES = "'\"`"
_BLANKS = " \t\r"


class Setting(NamedTuple):
    """One `name = value`, without quotes, with its line number."""

    section: str
    name: str
    value: str
    line: int

    @property
    def place(self) -> str:
        """The name of the setting in errors and notes."""
        return f"line {self.line}: {self.section}.{self.name}"


def parse(text: str) -> list[Setting]:
    """Parse an ini file.

    Raise UnparsableError with the line number, but without the line: it may contain a password.
    """
    found: list[Setting] = []
    section = ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip(_BLANKS)
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = _section(line, number)
            continue
        name, equals, value = line.partition("=")
        name = name.strip(_BLANKS)
        if not equals or not _NAME.fullmatch(name):
            raise UnparsableError(f"line {number}: expected 'name = value'")
        if not section:
            raise UnparsableError(f"line {number}: {name}: before the first section")
        found.append(Setting(section, name, _value(value.strip(_BLANKS), number), number))
    return found


def _section(line: str, number: int) -> str:
    name = line[1:-1].strip(_BLANKS)
    if not line.endswith("]") or not _NAME.fullmatch(name):
        raise UnparsableError(f"line {number}: expected '[section]'")
    return ALIASES.get(name, name)


def _value(value: str, number: int) -> str:
    if not value:
        raise UnparsableError(f"line {number}: no value: an empty one is written as ''")
    if value[0] not in _QUOTES:
        return value
    if len(value) < 2 or value[-1] != value[0]:
        raise UnparsableError(f"line {number}: a quote {value[0]} that isn't closed")
    return value[1:-1]
