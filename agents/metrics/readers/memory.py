"""Readers of memory of the node and its NUMA nodes, swap, page faults, page allocations."""

from __future__ import annotations

import re
from functools import partial
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
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.cpus import node_numbers
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import compute_used_memory, parse_meminfo, parse_vmstat
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

    _Compute = Callable[[dict[str, int]], dict[str, int]]


ON_DEMAND = {
    "mem_active": ("Active", "recently used pages"),
    "mem_inactive": ("Inactive", "pages not used recently"),
    "mem_anon": ("AnonPages", "anonymous memory mapped into page tables"),
    "mem_mapped": ("Mapped", "mapped files, such as libraries"),
    "mem_dirty": ("Dirty", "dirty pages, to be written to disk"),
    "mem_writeback": ("Writeback", "pages being written to disk"),
    "mem_locked": ("Mlocked", "memory locked by mlock(2)"),
    "mem_unevictable": ("Unevictable", "unevictable memory, including locked memory"),
    "mem_pagetables": ("PageTables", "page tables"),
    "mem_kernelstack": ("KernelStack", "kernel stacks of threads"),
    "mem_sreclaimable": ("SReclaimable", "reclaimable part of mem_slab"),
    "mem_sunreclaim": ("SUnreclaim", "unreclaimable part of mem_slab"),
    "mem_anon_hugepages": ("AnonHugePages", "anonymous memory in transparent huge pages"),
    "mem_shared_hugepages": ("ShmemHugePages", "shared memory in huge pages"),
    "mem_committed": ("Committed_AS", "memory committed to programs"),
    "mem_commit_limit": ("CommitLimit", "memory that can be committed under strict overcommit"),
    "mem_vmalloc_used": ("VmallocUsed", "vmalloc memory of the kernel"),
    "mem_percpu": ("Percpu", "per-cpu memory of the kernel"),
    "mem_hugetlb": ("Hugetlb", "huge page pool, all sizes"),
    "mem_direct_mapped_4k": ("DirectMap4k", "kernel direct map in 4 KiB pages"),
    "mem_direct_mapped_2m": ("DirectMap2M", "kernel direct map in 2 MiB pages"),
    "mem_direct_mapped_1g": ("DirectMap1G", "kernel direct map in 1 GiB pages"),
}
"""On-demand metrics: field of meminfo, description."""
_OF_DOMAINS = frozenset(ON_DEMAND) - {
    "mem_committed", "mem_commit_limit", "mem_vmalloc_used", "mem_percpu", "mem_hugetlb",
    "mem_direct_mapped_4k", "mem_direct_mapped_2m", "mem_direct_mapped_1g",
}  # fmt: skip
"""On-demand metrics that also exist for NUMA nodes."""

_DEFAULTS = {
    "mem_used": ("B",
        "memory of programs and the kernel, without reclaimable caches",
        ("/proc/meminfo, MemTotal - MemAvailable; node*/meminfo, MemTotal - MemFree -"
         " Active(file) - Inactive(file) - KReclaimable")),
    "mem_free": ("B",
        "unused memory (not even used as cache)",
        "/proc/meminfo and node*/meminfo, MemFree"),
    "mem_available": ("B",
        "memory available to new programs without swapping",
        "/proc/meminfo, MemAvailable"),
    "mem_buffers": ("B", "cache of block devices", "/proc/meminfo, Buffers"),
    "mem_cached": ("B", "page cache, including mem_shared", "/proc/meminfo, Cached"),
    "mem_shared": ("B", "shared memory and tmpfs", "/proc/meminfo, Shmem"),
    "mem_slab": ("B", "slab memory of the kernel", "/proc/meminfo, Slab"),
    "swap_used": ("B", "swap space in use", "/proc/meminfo, SwapTotal - SwapFree"),
    "swap_total": ("B", "swap space", "/proc/meminfo, SwapTotal"),
    "hugepages_used": ("B",
        ("used huge pages of the default size; mem_used includes all reserved huge pages, used"
         " or not"),
        "/proc/meminfo, (HugePages_Total - HugePages_Free) * Hugepagesize"),
    "page_faults": ("1/s", "page faults, including major faults", "/proc/vmstat, pgfault"),
    "major_page_faults": ("1/s", "major page faults (read from disk)", "/proc/vmstat, pgmajfault"),
    "swap_in": ("B/s", "memory swapped in", "/proc/vmstat, pswpin * page size"),
    "swap_out": ("B/s", "memory swapped out", "/proc/vmstat, pswpout * page size"),
    "oom_kills": ("1/s", "OOM kills, including those in cgroups", "/proc/vmstat, oom_kill"),
}  # fmt: skip
"""Metrics sent by default: unit, description, source."""

MEMORY_METRICS: dict[str, Metric] = {
    metric: Metric(
        unit, "memoryDomain" if metric in {"mem_used", "mem_free"} else "node", description, source
    )
    for metric, (unit, description, source) in _DEFAULTS.items()
} | {
    metric: Metric(
        unit="B",
        type="memoryDomain" if metric in _OF_DOMAINS else "node",
        description=description,
        source=f"/proc/meminfo{' and node*/meminfo' if metric in _OF_DOMAINS else ''}, {field}",
        is_default=False,
    )
    for metric, (field, description) in ON_DEMAND.items()
}

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


def node_memory(meminfo: dict[str, int]) -> dict[str, int]:
    """Return B by metric of /proc/meminfo, without fields that the kernel lacks.

    Raise UnparsableError if it lacks the fields of used memory.
    """
    used = compute_used_memory(meminfo)
    found = {"mem_used": used * _KB, "mem_available": max(0, meminfo["MemTotal"] - used) * _KB}
    for metric, field in _FIELDS.items():
        if field in meminfo:
            found[metric] = meminfo[field] * _KB
    if "SwapTotal" in meminfo and "SwapFree" in meminfo:
        found["swap_used"] = max(0, meminfo["SwapTotal"] - meminfo["SwapFree"]) * _KB
    if "HugePages_Total" in meminfo and "HugePages_Free" in meminfo and "Hugepagesize" in meminfo:
        pages = max(0, meminfo["HugePages_Total"] - meminfo["HugePages_Free"])
        found["hugepages_used"] = pages * meminfo["Hugepagesize"] * _KB
    return found


def collector_memory(meminfo: dict[str, int]) -> dict[str, int]:
    """Return B by metric, with mem_used of cc-metric-collector. Raise as `node_memory` does.

    cc-metric-collector subtracts Shmem twice, because Cached includes it, and does not subtract
    reclaimable slabs.
    """
    free = sum(meminfo.get(field, 0) for field in ("MemFree", "Buffers", "Cached", "Shmem"))
    return node_memory(meminfo) | {"mem_used": (meminfo["MemTotal"] - free) * _KB}


def _read_memory(node: Node, path: str, compute: _Compute, *, wants_more: bool) -> dict[str, int]:
    """Return B by metric of a meminfo file, with the on-demand metrics if `wants_more`."""
    meminfo = read_parsed(node, path, parse_meminfo)
    try:
        found = compute(meminfo)
    except UnparsableError as error:
        raise UnparsableError(f"/{path}: {error}") from error
    if wants_more and found:  # a NUMA node without memory has none
        for metric, (field, _) in ON_DEMAND.items():
            if field in meminfo:
                found[metric] = meminfo[field] * _KB
    return found


class MemorySettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.memory]."""

    used: Annotated[
        Literal["available", "cc-metric-collector"],
        Meta(
            description="mem_used of the node: MemTotal - MemAvailable, or as cc-metric-collector"
        ),
    ] = "available"


def domain_memory(meminfo: dict[str, int]) -> dict[str, int]:
    """Return B by metric of node*/meminfo; empty without memory.

    Raise UnparsableError. These files have no MemAvailable, and their MemUsed includes the page
    cache. Available memory is computed as in si_mem_available() in mm/show_mem.c, without the
    unknown reserves.
    """
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


def select_events(events: dict[str, int]) -> dict[str, int]:
    """Return events or pages of /proc/vmstat since boot by metric.

    Raise UnparsableError without any of them.
    """
    found = {_EVENTS[name]: value for name, value in events.items() if name in _EVENTS}
    if not found:
        raise UnparsableError("/proc/vmstat: no page faults")
    return found


class MemoryReader(Reader[MemorySettings]):
    """Memory of the node; used and free memory of NUMA nodes; swap, page faults, OOM kills."""

    name = "memory"
    Settings = MemorySettings
    metrics: ClassVar[dict[str, Metric]] = MEMORY_METRICS

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of /proc."""
        from ccagent.machine.checks import require_proc

        yield require_proc(node)

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read /proc/meminfo, /proc/vmstat and node*/meminfo. Raise NotHereError without any."""
        self.forget_errors()
        found: list[Gauge | Count] = []
        wants_more = self.wanted is not None and not self.wanted.isdisjoint(ON_DEMAND)
        for path, scope, compute in self._files(node):
            read = partial(_read_memory, node, path, compute, wants_more=wants_more)
            values = self.attempt(path, read) or {}
            found += (Gauge(metric, value, scope) for metric, value in values.items())
        path = "proc/vmstat"
        events = self.attempt(path, lambda: select_events(read_parsed(node, path, parse_vmstat)))
        for metric, value in (events or {}).items():
            scale = node.page_size if metric in _IN_PAGES else 1
            found.append(Count(metric, value * scale))
        self.require(found)
        return found

    def _files(self, node: Node) -> list[tuple[str, Scope, _Compute]]:
        """Return path, scope and parser of each meminfo file. Hotplug and CXL change NUMA nodes."""
        files: list[tuple[str, Scope, _Compute]] = [
            (
                "proc/meminfo",
                NODE,
                node_memory if self.settings.used == "available" else collector_memory,
            )
        ]
        for number in node_numbers(self.try_list(node, _NODES)):
            scope = Scope("memoryDomain", str(number))
            files.append((f"{_NODES}/node{number}/meminfo", scope, domain_memory))
        return files


_NUMASTAT = {
    "numa_hit": "pages allocated on this node as intended",
    "numa_miss": "pages allocated on this node although another node was preferred",
    "numa_foreign": "pages intended for this node but allocated on another",
    "interleave_hit": "interleaved pages allocated on this node as intended",
    "local_node": "pages allocated on this node by processes on its cpus",
    "other_node": "pages allocated on this node by processes on other nodes' cpus",
}
_LINE = re.compile(rb"^([a-z_]+) ([0-9]{1,20})$", re.MULTILINE)


def parse_numastat(content: bytes) -> dict[str, int]:
    """Parse node*/numastat. Return pages since boot by metric. Raise UnparsableError if invalid.

    Source: Documentation/admin-guide/numastat.rst of Linux.
    """
    numbers = {name.decode("ascii"): int(number) for name, number in _LINE.findall(content)}
    found = {f"numastats_{name}": numbers[name] for name in _NUMASTAT if name in numbers}
    if not found or max(found.values()) > LARGEST_UINT:
        raise UnparsableError(f"no counters of pages: {content[:80]!r}")
    return found


class NumastatReader(Reader[ReaderSettings]):
    """Page allocations of NUMA nodes; read only if a metric is wanted."""

    name = "numastat"
    is_exposed = False
    metrics: ClassVar[dict[str, Metric]] = {
        f"numastats_{name}": Metric(
            "1/s", "memoryDomain", description, f"node*/numastat, {name}", is_default=False
        )
        for name, description in _NUMASTAT.items()
    }

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read each node*/numastat. Raise NotHereError without NUMA nodes."""
        self.forget_errors()
        if not self.is_wanted:
            return []
        found: list[Gauge | Count] = []
        for number in node_numbers(node.list(_NODES)):
            scope = Scope("memoryDomain", str(number))
            path = f"{_NODES}/node{number}/numastat"
            pages = self.try_parsed(node, path, parse_numastat) or {}
            found += (Count(metric, value, scope) for metric, value in pages.items())
        if not found and not self.errors:
            raise NotHereError(f"/{_NODES}: no NUMA node with numastat")
        return found
