"""Memory collectors: meminfo, vmstat."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.exporter.collector import Collector
from ccagent.exporter.family import FamilyTable
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.meminfo import parse_meminfo
from ccagent.machine.procfs.vmstat import parse_vmstat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.family import Family, Rows
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node

_EVENTS = re.compile(r"(oom_kill|pgpg|pswp|pg.*fault).*")


class MeminfoCollector(Collector):
    """The values of all lines of /proc/meminfo."""

    name = "meminfo"

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._families = FamilyTable("gauge", "node_memory_{}", "Memory information field {}.")

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/meminfo."""
        for field, value in read_parsed(node, "proc/meminfo", parse_meminfo).items():
            name = field.replace("(", "_").replace(")", "")
            is_count = field.startswith("HugePages_")
            family = self._families.get(name if is_count else f"{name}_bytes")
            if family is not None:
                yield family, [((), value if is_count else value * 1024)]


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
        for name, value in read_parsed(node, "proc/vmstat", parse_vmstat).items():
            if _EVENTS.match(name):
                family = self._families.get(name)
                if family is not None:
                    yield family, [((), value)]
