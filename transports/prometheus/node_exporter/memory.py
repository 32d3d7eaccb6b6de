"""Memory collectors: meminfo, vmstat."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.errors import UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.vmstat import parse_counters
from ccagent.transports.prometheus.collector import Collector
from ccagent.transports.prometheus.family import FamilyTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node
    from ccagent.transports.prometheus.family import Family, Rows
    from ccagent.transports.prometheus.settings import ExporterSettings
    from ccagent.transports.prometheus.sources import NodeSources

_LINE = re.compile(rb"^([\x21-\x39\x3b-\x7e]+): *([0-9]{1,18})( kB)?$", re.MULTILINE)
_EVENTS = re.compile(r"(oom_kill|pgpg|pswp|pg.*fault).*")


def parse_amounts(content: bytes) -> dict[str, int]:
    """Parse /proc/meminfo. Return values by the end of the metric's name: `Active_anon_bytes`.

    Amounts are in B. Lines without a unit are counts, named without `_bytes`. Raise
    UnparsableError if no line is valid.
    """
    found: dict[str, int] = {}
    for raw, number, unit in _LINE.findall(content):
        name = raw.decode("ascii").replace("(", "_").replace(")", "")
        if unit:
            found[f"{name}_bytes"] = int(number) * 1024
        else:
            found[name] = int(number)
    if not found:
        raise UnparsableError(f"no line with a name and an amount: {content[:80]!r}")
    return found


class MeminfoCollector(Collector):
    """The values of all lines of /proc/meminfo."""

    name = "meminfo"

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._families = FamilyTable("gauge", "node_memory_{}", "Memory information field {}.")

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/meminfo."""
        for name, value in read_parsed(node, "proc/meminfo", parse_amounts).items():
            family = self._families.get(name)
            if family is not None:
                yield family, [((), value)]


class VmstatCollector(Collector):
    """Page faults, paging, swapping and OOM kills."""

    name = "vmstat"

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._families = FamilyTable(
            "untyped", "node_vmstat_{}", "/proc/vmstat information field {}."
        )

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/vmstat."""
        for name, value in read_parsed(node, "proc/vmstat", parse_counters).items():
            if _EVENTS.match(name):
                family = self._families.get(name)
                if family is not None:
                    yield family, [((), value)]
