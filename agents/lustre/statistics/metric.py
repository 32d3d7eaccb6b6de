"""Metrics of Lustre statistics, and the combination of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import msgspec

from ccagent.agents.lustre.parameters import show_text
from ccagent.errors import UnparsableError

INTEGERS = range(2**63)
"""Largest number to send: counters are unsigned, but integers of line protocol are signed."""

_NUMBER = re.compile(rb"[0-9]{1,19}")
_TARGET = re.compile(r"(?:[A-Za-z0-9_-]{1,64}-(OST|MDT)[0-9a-f]{4}|MGS)", re.ASCII)

KINDS = {"ost": "OST", "mdt": "MDT", "mgs": "MGS"}
"""Kinds of targets: in metric names, and for display."""


Complain = Callable[[str], None]
"""Callback for a message about unparsable text."""


class Quantity(msgspec.Struct, frozen=True):
    """Unit and meaning of a metric, and how scopes combine to the node value."""

    unit: str
    description: str
    combined: Literal["sum", "max", "min"] = "sum"

    def combine(self, values: Iterable[int]) -> int:
        """Combine one or more values to one value."""
        match self.combined:
            case "sum":
                return sum(values)
            case "max":
                return max(values)
            case "min":
                return min(values)


class TargetScope(NamedTuple):
    """The part of a node named by the tags `stype` and `stype-id`."""

    stype: str
    stype_id: str


class Measurement(NamedTuple):
    """One measured number: entry in the table of metrics, name, value, and scope.

    The entry differs from the name if the table has one entry for many names, with a capital word
    as placeholder. Without a scope the number is the node value.
    """

    entry: str
    name: str
    value: int
    place: TargetScope | None = None


class MetricGroup(msgspec.Struct, frozen=True):
    """Metrics that are switched on together.

    patterns: arguments of `lctl get_param`. programs, files (below /): their output or content is
    passed as a parameter named after the command or path. names: matches the group's parameters,
    with optional groups `place` and `leaf`. read: parses these two and the value; raises
    UnparsableError if the whole value is unparsable.
    """

    names: re.Pattern[str]
    read: Callable[[str, str, bytes, Complain], Iterable[Measurement]]
    patterns: tuple[str, ...] = ()
    programs: tuple[tuple[str, ...], ...] = ()
    files: tuple[str, ...] = ()


def number(text: bytes) -> int:
    """Return an integer. Raise UnparsableError if it is invalid or too large to send."""
    if _NUMBER.fullmatch(text):
        value = int(text)
        if value in INTEGERS:
            return value
    raise UnparsableError(f"{show_text(text)} is no number")


def target(text: str) -> tuple[TargetScope, str]:
    """Return a target, `scratch-OST001f` or `MGS`, and its kind. Raise UnparsableError."""
    found = _TARGET.fullmatch(text)
    if found is None:
        raise UnparsableError(f"{show_text(text)} is no target")
    return TargetScope("filesystem", text), (found[1] or "MGS").lower()
