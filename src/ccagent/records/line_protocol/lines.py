"""What lines are: messages of ClusterCockpit's categories."""

from __future__ import annotations

from typing import Literal

import msgspec

from ccagent.errors import UnparsableError

Precision = Literal["s", "ns"]
"""Unit of the times on the wire; ClusterCockpit's store understands seconds only."""

Category = Literal["metric", "event", "log", "control", "query"]

CATEGORIES: dict[str, Category] = {
    "value": "metric", "event": "event", "log": "log", "control": "control", "query": "query",
}  # fmt: skip
"""Field keys and what they say of the message."""

TYPES = ("node", "socket", "die", "memoryDomain", "llc", "core", "hwthread", "accelerator")
LOG_LEVELS = ("debug", "info", "warn", "error")
"""What the tags `type` and `loglevel` may be."""

SECOND = 10**9
"""Nanoseconds."""

SIGNED = range(-(2**63), 2**63)
UNSIGNED = range(2**64)
"""The integers that fields and times hold."""


class LineError(UnparsableError):
    """Text that isn't line protocol. `line` and `column` count lines and characters from 1."""

    def __init__(self, line: int, column: int, expected: str, found: str) -> None:
        super().__init__(f"line {line}, column {column}: expected {expected}, found {found}")
        self.line = line
        self.column = column
        self.expected = expected


class Unsigned(int):
    """An integer below 2**64 that is written with `u`."""

    __slots__ = ()


class Line(msgspec.Struct, frozen=True):
    """One message. time: nanoseconds since 1970, or None for the time of receipt."""

    measurement: str
    tags: dict[str, str]
    field: str
    value: int | float | str | bool | Unsigned
    time: int | None

    @property
    def category(self) -> Category | None:
        """What kind of message it is; None if ClusterCockpit has no such field."""
        return CATEGORIES.get(self.field)


def get_control(measurement: str, tags: dict[str, str], time: int) -> Line:
    """Ask for the value of a control."""
    return Line(measurement, tags | {"method": "GET"}, "control", "", time)


def put_control(measurement: str, tags: dict[str, str], value: str, time: int) -> Line:
    """Set a control to a value."""
    return Line(measurement, tags | {"method": "PUT"}, "control", value, time)
