"""Structures of decoded lines: messages of ClusterCockpit's categories."""

from __future__ import annotations

from typing import Literal

import msgspec

from ccagent.errors import UnparsableError

Precision = Literal["s", "ns"]
"""Unit of times in messages. ClusterCockpit's store accepts only seconds."""

ReadPrecision = Precision | Literal["any"]
"""Unit of times to read. `any`: numbers of unknown unit, left to the caller."""

Category = Literal["metric", "event", "log", "control", "query"]

CATEGORIES: dict[str, Category] = {
    "value": "metric", "event": "event", "log": "log", "control": "control", "query": "query",
}  # fmt: skip
"""Categories of messages by the key of their field."""

TYPES = ("node", "socket", "die", "memoryDomain", "llc", "core", "hwthread", "accelerator")
LOG_LEVELS = ("debug", "info", "warn", "error")
"""Valid values of the tags `type` and `loglevel`."""

SECOND = 10**9
"""Nanoseconds per second."""

SIGNED = range(-(2**63), 2**63)
UNSIGNED = range(2**64)
"""The integer ranges of fields (with `i` and `u`) and times."""


class LineError(UnparsableError):
    """Text that is not line protocol. `line` and `column` count lines and characters from 1."""

    def __init__(self, line: int, column: int, expected: str, found: str) -> None:
        super().__init__(f"line {line}, column {column}: expected {expected}, found {found}")
        self.line = line
        self.column = column
        self.expected = expected


class Line(msgspec.Struct, frozen=True):
    """One message. time: nanoseconds since 1970, or None for the time of receipt."""

    measurement: str
    tags: dict[str, str]
    field: str
    value: int | float | str | bool
    time: int | None

    @property
    def category(self) -> Category | None:
        """The category of the message; None if ClusterCockpit has no such field."""
        return CATEGORIES.get(self.field)
