"""The PMUs of the machine, read from /sys/bus/event_source/devices."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.agents.metrics.perf.call import PerfEvent
from ccagent.agents.metrics.perf.format import (
    Field,
    encode,
    parse_format,
    parse_terms,
    parse_type,
)
from ccagent.errors import NotHereError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.cpulist import parse_cpu_list

if TYPE_CHECKING:
    from ccagent.machine.node import Node

_DEVICES = "sys/bus/event_source/devices"


class Pmu:
    """A PMU. Each of its files is read once, at first use."""

    def __init__(self, node: Node, name: str) -> None:
        self.name = name
        self._node = node
        self._directory = f"{_DEVICES}/{name}"
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
    names = sorted(name for name in node.list(_DEVICES) if wanted.fullmatch(name))
    if not names:
        raise NotHereError(f"/{_DEVICES}: no {pattern}")
    return [Pmu(node, name) for name in names]
