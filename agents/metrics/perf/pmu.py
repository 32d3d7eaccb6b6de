"""The PMUs of the machine, read from /sys/bus/event_source/devices.

A PMU's file format/umask, `config:8-15`, has the bits of a term. Source:
Documentation/ABI/testing/sysfs-bus-event_source-devices-format and -events.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.metrics.perf.call import PerfEvent
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.machine.node import Node


_FORMAT = re.compile(rb"config([12]?):(\d{1,2}(?:-\d{1,2})?(?:,\d{1,2}(?:-\d{1,2})?)*)")
_TERM = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)(?:=(0x[0-9A-Fa-f]{1,16}|\d{1,20}))?", re.ASCII)
_WORDS = {"config": 0, "config1": 1, "config2": 2}
_WIDTH = 64


class Field(NamedTuple):
    """Bits of a term, lowest first.

    word: 0 for config, 1 for config1, 2 for config2. bits: positions in the word.
    """

    word: int
    bits: tuple[int, ...]


def parse_format(content: bytes) -> Field:
    """Parse a file below format, `config:0-7,32-35`. Raise UnparsableError if invalid."""
    found = _FORMAT.fullmatch(content.strip())
    if found is None:
        raise UnparsableError(f"not a format of a PMU: {content[:80]!r}")
    bits: list[int] = []
    for part in found[2].split(b","):
        first, _, last = part.partition(b"-")
        start, end = int(first), int(last or first)
        # Ascending ranges in one word have at most as many bits as the word.
        if not start <= end < _WIDTH or (bits and start <= bits[-1]):
            raise UnparsableError(f"not ascending bits of a word: {content[:80]!r}")
        bits.extend(range(start, end + 1))
    return Field(int(found[1] or 0), tuple(bits))


def parse_terms(text: str) -> dict[str, int]:
    """Parse `event=0x04,umask=0x03`; the default value is 1. Raise UnparsableError if invalid."""
    terms: dict[str, int] = {}
    for part in text.strip().split(","):
        found = _TERM.fullmatch(part.strip())
        if found is None or found[1] in terms:
            raise UnparsableError(f"not the terms of an event: {text[:80]!r}")
        terms[found[1]] = (
            1 if found[2] is None else int(found[2], 0 if found[2][1:2] == "x" else 10)
        )
    return terms


def parse_type(content: bytes) -> int:
    """Parse the file `type` of a PMU. Raise UnparsableError if invalid."""
    text = content.strip()
    if not text.isdigit() or len(text) > 9:
        raise UnparsableError(f"not the type of a PMU: {content[:80]!r}")
    return int(text)


def encode(terms: Mapping[str, int], fields: Mapping[str, Field]) -> tuple[int, int, int]:
    """Return the terms encoded in config, config1 and config2 of perf_event_attr.

    Raise UnparsableError for an unknown term or a too large value.
    """
    words = [0, 0, 0]
    for name, value in terms.items():
        field = fields.get(name)
        if field is None and name in _WORDS:
            field = Field(_WORDS[name], tuple(range(_WIDTH)))
        if field is None:
            raise UnparsableError(f"the PMU has no term {name}")
        if value >> len(field.bits):
            raise UnparsableError(f"{name}={value:#x} has no room in {len(field.bits)} bits")
        for place, bit in enumerate(field.bits):
            words[field.word] |= (value >> place & 1) << bit
    return words[0], words[1], words[2]


DEVICES = "sys/bus/event_source/devices"


class Pmu:
    """A PMU. Each of its files is read once, at first use."""

    def __init__(self, node: Node, name: str) -> None:
        self.name = name
        self._node = node
        self._directory = f"{DEVICES}/{name}"
        self._type: int | None = None
        self._fields: dict[str, Field] = {}

    def event(self, text: str) -> PerfEvent:
        """Return the event of perf's notation, `event=0xc7,umask=0x01`.

        Raise NotHereError or UnparsableError for an unknown event, else the errors of Node.read.
        """
        terms = parse_terms(text)
        if self._type is None:
            self._type = read_parsed(self._node, f"{self._directory}/type", parse_type)
        for name in terms:
            if name not in self._fields:
                path = f"{self._directory}/format/{name}"
                self._fields[name] = read_parsed(self._node, path, parse_format)
        return PerfEvent(self._type, *encode(terms, self._fields))

    def find_event(self, name: str) -> PerfEvent:
        """Return a named event of the PMU. Raise as `event` does."""
        path = f"{self._directory}/events/{name}"
        return self.event(self._node.read(path).decode("ascii", "replace"))

    def cpus(self) -> list[int]:
        """Return the cpus that count the PMU's events, one for each hardware instance.

        Raise UnparsableError for a bad list, else the errors of Node.read.
        """
        return read_parsed(self._node, f"{self._directory}/cpumask", parse_cpu_list)


def find_pmus(node: Node, pattern: str) -> list[Pmu]:
    """Return the PMUs whose names match a pattern, sorted.

    Raise NotHereError if no name matches, else the errors of Node.list.
    """
    wanted = re.compile(pattern)
    names = sorted(name for name in node.list(DEVICES) if wanted.fullmatch(name))
    if not names:
        raise NotHereError(f"/{DEVICES}: no {pattern}")
    return [Pmu(node, name) for name in names]
