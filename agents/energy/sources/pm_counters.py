"""Counters of HPE Cray's board controller: node, processors, memory and accelerators, at 10 Hz."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.energy.domains import NODE_METER, EnergyDomain
from ccagent.agents.energy.sources.base import (
    ALL_SOCKETS,
    DomainCounters,
    EnergySource,
    Kept,
    read_all,
)
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.energy.domains import MeasuredEnergy
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

PM_COUNTERS = "sys/cray/pm_counters"
_LINE = re.compile(rb"([0-9]{1,12}) J(?: [0-9]{1,20} us)?")
_NUMBER = re.compile(rb"([0-9]{1,20})(?: .*)?")
_FILE = re.compile(r"(?:(accel|cpu)([0-9]{1,3})_)?(cpu_|memory_)?energy", re.ASCII)
_ATTEMPTS = 3
_STALE = "the controller has no new scan"
_MOST_WATTS = {"node": 20_000.0, "package": 2000.0, "dram": 1000.0, "card": 3000.0}


def parse_joules(content: bytes) -> int:
    """Return the uJ of `NUMBER J TIME us`. Raise UnparsableError if invalid."""
    found = _LINE.fullmatch(content.strip())
    if found is None:
        raise UnparsableError(f"not an energy: {content[:80]!r}")
    return int(found[1]) * 1_000_000


def parse_scan(content: bytes) -> int:
    """Return the scan number in `freshness` or `startup`. Raise UnparsableError if invalid."""
    found = _NUMBER.fullmatch(content.strip())
    if found is None:
        raise UnparsableError(f"not a number: {content[:80]!r}")
    return int(found[1])


def find_domain(name: str) -> EnergyDomain | None:
    """Return the domain of a file; None for a file of no separate domain."""
    found = _FILE.fullmatch(name)
    if found is None:
        return None
    unit, number, part = found.groups()
    if unit is None:
        kinds = {None: NODE_METER, "cpu_": EnergyDomain("package", ALL_SOCKETS)}
        return kinds.get(part, EnergyDomain("dram", ALL_SOCKETS))
    if part is not None:
        return None
    return EnergyDomain("card" if unit == "accel" else "package", int(number))


class PmCountersSource(EnergySource):
    """All counters of one scan of the controller."""

    name: ClassVar[str] = "pm_counters"

    def __init__(self) -> None:
        super().__init__()
        self._counters = DomainCounters(self.name)
        self._freshness: int = -1
        self._startup: int = -1

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of the meters of the node."""
        from ccagent.agents.energy.checks import require_node_meter

        yield require_node_meter(node)

    def read(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        """Read one scan. Raise NotHereError without pm_counters."""
        self.errors = []
        names = sorted(node.list(PM_COUNTERS))
        domains = {name: domain for name in names if (domain := find_domain(name)) is not None}
        if any(name.startswith("cpu0_") for name in domains):
            domains.pop("cpu_energy", None)  # this file is the sum over the sockets
        if not domains:
            raise NotHereError(f"/{PM_COUNTERS}: no energy")
        for name, domain in domains.items():
            path = f"{PM_COUNTERS}/{name}"
            self._counters.define(path, domain, 0, _MOST_WATTS[domain.kind])
        self._counters.keep_only(f"{PM_COUNTERS}/{name}" for name in domains)
        values, freshness = self._read_scan(node)
        startup = self._number(node, "startup")
        if self._startup not in {-1, startup}:
            self._counters.interrupt("the controller has reset its counters")
        if freshness == self._freshness:
            values = {}
        self._freshness, self._startup = freshness, startup
        self._counters.add(node, values, _STALE)
        return self._counters.take()

    def keep(self) -> Kept:
        """Return the last readings."""
        return self._counters.keep()

    def restore(self, kept: Kept) -> None:
        """Continue after the readings of an earlier process."""
        self._counters.restore(kept)

    def _read_scan(self, node: Node) -> tuple[dict[str, int], int]:
        """Return the values of one scan, and the number of the scan."""
        for _ in range(_ATTEMPTS):
            freshness = self._number(node, "freshness")
            values = read_all(
                self.errors, self._counters.keys, lambda path: read_parsed(node, path, parse_joules)
            )
            if self._number(node, "freshness") == freshness:
                return values, freshness
        raise UnparsableError(f"/{PM_COUNTERS}: a new scan during each of {_ATTEMPTS} readings")

    def _number(self, node: Node, name: str) -> int:
        return read_parsed(node, f"{PM_COUNTERS}/{name}", parse_scan)
