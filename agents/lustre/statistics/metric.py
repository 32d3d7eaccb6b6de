"""Metrics of Lustre's statistics, and how readings become their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import msgspec

from ccagent.agents.lustre.parameters import show_text
from ccagent.errors import UnparsableError

INTEGERS = range(2**63)
"""What may be sent: the counters are unsigned, but the line protocol's integers have a sign."""

_NUMBER = re.compile(rb"[0-9]{1,19}")
_TARGET = re.compile(r"(?:[A-Za-z0-9_-]{1,64}-(OST|MDT)[0-9a-f]{4}|MGS)", re.ASCII)

KINDS = {"ost": "OST", "mdt": "MDT", "mgs": "MGS"}
"""The kinds of targets, as names of metrics and as people write them."""


Complain = Callable[[str], None]
"""Takes a sentence about something that can't be understood."""


class Quantity(msgspec.Struct, frozen=True):
    """Unit and meaning of a metric, and how values of several places make up that of the node."""

    unit: str
    description: str
    combined: Literal["sum", "max", "min"] = "sum"

    def combine(self, values: Iterable[int]) -> int:
        """Make one value of one or more."""
        match self.combined:
            case "sum":
                return sum(values)
            case "max":
                return max(values)
            case "min":
                return min(values)


class TargetScope(NamedTuple):
    """The part of a node that the tags `stype` and `stype-id` name."""

    stype: str
    stype_id: str


class Measurement(NamedTuple):
    """One number that was read: entry of the table of metrics, name, value, and of what part.

    The entry differs from the name where the table has one entry for many names, with a word in
    capitals for what differs. Without a place the reading is the value of the node.
    """

    entry: str
    name: str
    value: int
    place: TargetScope | None = None


class MetricGroup(msgspec.Struct, frozen=True):
    """Metrics that are switched on together.

    `patterns` are for `lctl get_param`. The output of `programs`, and the content of `files` (below
    /), is handed in as a parameter with the command or the path for its name. `names` finds the
    group's parameters and may name `place` and `leaf`; `read` takes these two and the value. It
    raises UnparsableError where nothing of the value can be understood.
    """

    names: re.Pattern[str]
    read: Callable[[str, str, bytes, Complain], Iterable[Measurement]]
    patterns: tuple[str, ...] = ()
    programs: tuple[tuple[str, ...], ...] = ()
    files: tuple[str, ...] = ()


def number(text: bytes) -> int:
    """Return an integer that may be sent. Raises UnparsableError."""
    if _NUMBER.fullmatch(text):
        value = int(text)
        if value in INTEGERS:
            return value
    raise UnparsableError(f"{show_text(text)} is no number")


def target(text: str) -> tuple[TargetScope, str]:
    """Return a target, `scratch-OST001f` or `MGS`, and its kind. Raises UnparsableError."""
    found = _TARGET.fullmatch(text)
    if found is None:
        raise UnparsableError(f"{show_text(text)} is no target")
    return TargetScope("filesystem", text), (found[1] or "MGS").lower()
