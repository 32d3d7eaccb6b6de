"""Reader of memory of the node and its NUMA nodes, swap and page faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from ccagent.agents.metrics.readers.base import (
    NODE,
    Count,
    Gauge,
    Metric,
    Reader,
    ReaderSettings,
    Scope,
)
from ccagent.agents.metrics.readers.memory_tables import MEMORY_METRICS, ON_DEMAND
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.cpus import node_numbers
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.meminfo import compute_used_memory, parse_meminfo
from ccagent.machine.procfs.vmstat import parse_vmstat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

    T = TypeVar("T")

_KB = 1024
_NODES = "sys/devices/system/node"
_FIELDS = {
    "mem_free": "MemFree",
    "mem_buffers": "Buffers",
    "mem_cached": "Cached",
    "mem_shared": "Shmem",
    "mem_slab": "Slab",
    "swap_total": "SwapTotal",
}
_EVENTS = {
    "pgfault": "page_faults",
    "pgmajfault": "major_page_faults",
    "pswpin": "swap_in",
    "pswpout": "swap_out",
    "oom_kill": "oom_kills",
}
"""Metrics by name in /proc/vmstat. Kernels before 4.13 have no oom_kill."""
_IN_PAGES = ("swap_in", "swap_out")


def parse_node_memory(content: bytes) -> dict[str, int]:
    """Parse /proc/meminfo. Return B by metric, without fields that the kernel lacks.

    Raise UnparsableError if it is invalid or lacks the fields of used memory.
    """
    meminfo = parse_meminfo(content)
    used = compute_used_memory(meminfo)
    found = {
        "mem_used": used * _KB,
        "mem_available": max(0, meminfo["MemTotal"] - used) * _KB,
    }
    for metric, field in _FIELDS.items():
        if field in meminfo:
            found[metric] = meminfo[field] * _KB
    if "SwapTotal" in meminfo and "SwapFree" in meminfo:
        found["swap_used"] = max(0, meminfo["SwapTotal"] - meminfo["SwapFree"]) * _KB
    if "HugePages_Total" in meminfo and "HugePages_Free" in meminfo and "Hugepagesize" in meminfo:
        pages = max(0, meminfo["HugePages_Total"] - meminfo["HugePages_Free"])
        found["hugepages_used"] = pages * meminfo["Hugepagesize"] * _KB
    return found


def parse_more(content: bytes) -> dict[str, int]:
    """Parse the on-demand fields of meminfo. Return B by metric."""
    found = parse_meminfo(content)
    return {
        metric: found[field] * _KB for metric, (field, _) in ON_DEMAND.items() if field in found
    }


def _with_more(parse: Callable[[bytes], dict[str, int]]) -> Callable[[bytes], dict[str, int]]:
    """Return a parser that adds the on-demand fields; a NUMA node without memory has none."""

    def parse_all(content: bytes) -> dict[str, int]:
        found = parse(content)
        return found | parse_more(content) if found else found

    return parse_all


def parse_collector_memory(content: bytes) -> dict[str, int]:
    """Parse /proc/meminfo with mem_used of cc-metric-collector. Raise UnparsableError.

    cc-metric-collector subtracts Shmem twice, because Cached includes it, and does not subtract
    reclaimable slabs.
    """
    found = parse_node_memory(content)
    meminfo = parse_meminfo(content)
    free = sum(meminfo.get(field, 0) for field in ("MemFree", "Buffers", "Cached", "Shmem"))
    return found | {"mem_used": (meminfo["MemTotal"] - free) * _KB}


class MemorySettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.memory]."""

    used: Annotated[
        Literal["available", "cc-metric-collector"],
        Meta(
            description="mem_used of the node: MemTotal - MemAvailable, or as cc-metric-collector"
        ),
    ] = "available"


def parse_domain_memory(content: bytes) -> dict[str, int]:
    """Parse node*/meminfo, lines `Node 0 MemFree: 1 kB`.

    Return B by metric; empty without memory.

    Raise UnparsableError. These files have no MemAvailable, and their MemUsed includes the page
    cache. Available memory is computed as in si_mem_available() in mm/show_mem.c, without the
    unknown reserves.
    """
    meminfo = parse_meminfo(content)
    try:
        total, free = meminfo["MemTotal"], meminfo["MemFree"]
        cache = meminfo["Active(file)"] + meminfo["Inactive(file)"]
        # KReclaimable exists since Linux 4.20.
        slab = meminfo["KReclaimable" if "KReclaimable" in meminfo else "SReclaimable"]
    except KeyError as error:
        raise UnparsableError(f"no {error.args[0]}") from error
    if not total:
        return {}
    return {"mem_used": max(0, total - free - cache - slab) * _KB, "mem_free": free * _KB}


def parse_events(content: bytes) -> dict[str, int]:
    """Parse /proc/vmstat. Return events or pages since boot by metric.

    Raise UnparsableError without any of them.
    """
    events = parse_vmstat(content)
    found = {_EVENTS[name]: value for name, value in events.items() if name in _EVENTS}
    if not found:
        raise UnparsableError("no page faults")
    return found


class MemoryReader(Reader[MemorySettings]):
    """Memory of the node; used and free memory of NUMA nodes; swap, page faults, OOM kills."""

    name = "memory"
    Settings = MemorySettings
    metrics: ClassVar[dict[str, Metric]] = MEMORY_METRICS

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of /proc."""
        from ccagent.machine.procfs.checks import require_proc

        yield require_proc(node)

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read /proc/meminfo, /proc/vmstat and node*/meminfo. Raise NotHereError without any."""
        self.errors = []
        found: list[Gauge | Count] = []
        missing: list[NotHereError] = []
        wants_more = self.wanted is not None and not self.wanted.isdisjoint(ON_DEMAND)
        for path, scope, parse in self._files(node):
            try:
                values = read_parsed(node, path, _with_more(parse) if wants_more else parse)
            except NotHereError as error:
                missing.append(error)
            except CcagentError as error:
                self.errors.append(str(error))
            else:
                found += (Gauge(metric, value, scope) for metric, value in values.items())
        try:
            events = read_parsed(node, "proc/vmstat", parse_events)
        except NotHereError as error:
            missing.append(error)
        except CcagentError as error:
            self.errors.append(str(error))
        else:
            for metric, value in events.items():
                scale = node.page_size if metric in _IN_PAGES else 1
                found.append(Count(metric, value * scale))
        if missing and not found and not self.errors:
            raise missing[0]
        return found

    def _files(self, node: Node) -> list[tuple[str, Scope, Callable[[bytes], dict[str, int]]]]:
        """Return path, scope and parser of each meminfo file. Hotplug and CXL change NUMA nodes."""
        files: list[tuple[str, Scope, Callable[[bytes], dict[str, int]]]] = [
            (
                "proc/meminfo",
                NODE,
                parse_node_memory if self.settings.used == "available" else parse_collector_memory,
            )
        ]
        try:
            numbers = node_numbers(node.list(_NODES))
        except NotHereError:
            numbers = []
        except CcagentError as error:
            self.errors.append(str(error))
            numbers = []
        for number in numbers:
            scope = Scope("memoryDomain", str(number))
            files.append((f"{_NODES}/node{number}/meminfo", scope, parse_domain_memory))
        return files
