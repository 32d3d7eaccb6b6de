"""Lines as structures: messages of ClusterCockpit's categories."""

from __future__ import annotations

from typing import Literal

import msgspec

from ccagent.errors import UnparsableError

Precision = Literal["s", "ns"]
"""Unit of the times on the wire; ClusterCockpit's store understands seconds only."""

ReadPrecision = Precision | Literal["any"]
"""`any`: times are numbers, in whichever unit; the reader of the line finds out."""

Category = Literal["metric", "event", "log", "control", "query"]

CATEGORIES: dict[str, Category] = {
    "value": "metric", "event": "event", "log": "log", "control": "control", "query": "query",
}  # fmt: skip
"""Categories of messages by the key of their field."""

TYPES = ("node", "socket", "die", "memoryDomain", "llc", "core", "hwthread", "accelerator")
LOG_LEVELS = ("debug", "info", "warn", "error")
"""Values that the tags `type` and `loglevel` may have."""

SECOND = 10**9
"""Nanoseconds of a second."""

SIGNED = range(-(2**63), 2**63)
UNSIGNED = range(2**64)
"""The integers that fields (with `i` and `u`) and times can hold."""


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
