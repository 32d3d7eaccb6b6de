"""Memory of the node and of its NUMA nodes, swap, page faults."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from ccagent.agents.metrics.readers.base import (
    NODE,
    Count,
    Gauge,
    Metric,
    Place,
    Reader,
    ReaderSettings,
)
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.numa import node_numbers
from ccagent.machine.parsed import read_parsed
from ccagent.machine.system_state import parse_meminfo, used_memory
from ccagent.records.envelopes import LARGEST_UINT

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
_MORE = {
    "mem_active": ("Active", "pages used lately"),
    "mem_inactive": ("Inactive", "pages that have not been used lately"),
    "mem_anon": ("AnonPages", "anonymous memory in page tables"),
    "mem_mapped": ("Mapped", "files in page tables, libraries for example"),
    "mem_dirty": ("Dirty", "waits to be written to disk"),
    "mem_writeback": ("Writeback", "is being written to disk"),
    "mem_locked": ("Mlocked", "locked into memory"),
    "mem_unevictable": ("Unevictable", "cannot be taken away, locked memory included"),
    "mem_pagetables": ("PageTables", "page tables"),
    "mem_kernelstack": ("KernelStack", "stacks of threads in the kernel"),
    "mem_sreclaimable": ("SReclaimable", "part of mem_slab that can be given up"),
    "mem_sunreclaim": ("SUnreclaim", "part of mem_slab that cannot be given up"),
    "mem_anon_hugepages": ("AnonHugePages", "transparent huge pages"),
    "mem_shared_hugepages": ("ShmemHugePages", "shared memory in huge pages"),
    "mem_committed": ("Committed_AS", "memory that programs were promised"),
    "mem_commit_limit": ("CommitLimit", "memory that can be promised under strict accounting"),
    "mem_vmalloc_used": ("VmallocUsed", "virtually contiguous memory of the kernel"),
    "mem_percpu": ("Percpu", "memory of the kernel for each cpu"),
    "mem_hugetlb": ("Hugetlb", "huge pages of all sizes that are set aside"),
    "mem_direct_mapped_4k": ("DirectMap4k", "mapped for the kernel in pages of 4 KiB"),
    "mem_direct_mapped_2m": ("DirectMap2M", "mapped for the kernel in pages of 2 MiB"),
    "mem_direct_mapped_1g": ("DirectMap1G", "mapped for the kernel in pages of 1 GiB"),
}
"""Metrics on demand: field of meminfo, and what it is."""
_ON_NODES = frozenset(_MORE) - {
    "mem_committed", "mem_commit_limit", "mem_vmalloc_used", "mem_percpu", "mem_hugetlb",
    "mem_direct_mapped_4k", "mem_direct_mapped_2m", "mem_direct_mapped_1g",
}  # fmt: skip
"""Those that NUMA nodes have too."""
_LINE = re.compile(
    rb"^(?:Node [0-9]+ )?(%b): +([0-9]{1,17}) kB$"
    % b"|".join(field.encode() for field, _ in _MORE.values()),
    re.MULTILINE,
)
_EVENTS = {
    b"pgfault": "page_faults",
    b"pgmajfault": "major_page_faults",
    b"pswpin": "swap_in",
    b"pswpout": "swap_out",
    b"oom_kill": "oom_kills",
}
_EVENT = re.compile(rb"^(%b) (\d{1,20})$" % b"|".join(_EVENTS), re.MULTILINE)
_IN_PAGES = ("swap_in", "swap_out")


def parse_node_memory(content: bytes) -> dict[str, int]:
    """Parse /proc/meminfo: metric -> B. What the kernel lacks is left out.

    Raises UnparsableError, also where it doesn't tell how much is used.
    """
    meminfo = parse_meminfo(content)
    used = used_memory(meminfo)
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
    """Parse the fields on demand of meminfo of the node or of a NUMA node: metric -> B."""
    found = {name.decode("ascii"): int(number) * _KB for name, number in _LINE.findall(content)}
    return {metric: found[field] for metric, (field, _) in _MORE.items() if field in found}


def _with_more(parse: Callable[[bytes], dict[str, int]]) -> Callable[[bytes], dict[str, int]]:
    """Return a parser that adds the fields on demand; a NUMA node without memory has none."""

    def parse_all(content: bytes) -> dict[str, int]:
        found = parse(content)
        return found | parse_more(content) if found else found

    return parse_all


def parse_collector_memory(content: bytes) -> dict[str, int]:
    """Parse /proc/meminfo with mem_used as cc-metric-collector has it. Raises UnparsableError.

    That takes Shmem off twice, since Cached holds it, and reclaimable slabs not at all.
    """
    found = parse_node_memory(content)
    meminfo = parse_meminfo(content)
    free = sum(meminfo.get(field, 0) for field in ("MemFree", "Buffers", "Cached", "Shmem"))
    return found | {"mem_used": (meminfo["MemTotal"] - free) * _KB}


class MemorySettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.memory]."""

    used: Annotated[
        Literal["available", "cc-metric-collector"],
        Meta(description="mem_used of the node: MemTotal - MemAvailable, or that collector's"),
    ] = "available"


def parse_domain_memory(content: bytes) -> dict[str, int]:
    """Parse node*/meminfo, lines `Node 0 MemFree: 1 kB`: metric -> B; empty without memory.

    Raises UnparsableError. The kernel gives no MemAvailable there, and its MemUsed holds the page
    cache. Hence available is reckoned as si_mem_available() in mm/show_mem.c does, but for the
    reserves, which a NUMA node doesn't tell.
    """
    meminfo = {name.rpartition(" ")[2]: value for name, value in parse_meminfo(content).items()}
    try:
        total, free = meminfo["MemTotal"], meminfo["MemFree"]
        cache = meminfo["Active(file)"] + meminfo["Inactive(file)"]
        # KReclaimable: since 4.20.
        slab = meminfo["KReclaimable" if "KReclaimable" in meminfo else "SReclaimable"]
    except KeyError as error:
        raise UnparsableError(f"no {error.args[0]}") from None
    if not total:
        return {}
    return {"mem_used": max(0, total - free - cache - slab) * _KB, "mem_free": free * _KB}


def parse_vmstat(content: bytes) -> dict[str, int]:
    """Parse /proc/vmstat: metric -> events, or pages, since boot. Raises UnparsableError.

    What the kernel lacks (oom_kill: before 4.13) is left out, but not all of it.
    """
    found = {_EVENTS[name]: int(number) for name, number in _EVENT.findall(content)}
    if not found:
        raise UnparsableError("no page faults")
    if max(found.values()) > LARGEST_UINT:
        raise UnparsableError("a counter is out of range")
    return found


class MemoryReader(Reader[MemorySettings]):
    """Memory of the node and, of NUMA nodes with memory, used and free; swap, faults, OOM kills."""

    name = "memory"
    Settings = MemorySettings
    metrics: ClassVar[dict[str, Metric]] = {
        "mem_used": Metric(
            unit="B",
            type="memoryDomain",
            description="memory of programs and the kernel, without caches that can be given up",
            source="/proc/meminfo, MemTotal - MemAvailable; node*/meminfo, MemTotal - MemFree"
            " - Active(file) - Inactive(file) - KReclaimable",
        ),
        "mem_free": Metric(
            unit="B",
            type="memoryDomain",
            description="memory that nothing uses, not even as a cache",
            source="/proc/meminfo and node*/meminfo, MemFree",
        ),
        "mem_available": Metric(
            unit="B",
            type="node",
            description="memory that new programs can have without swapping",
            source="/proc/meminfo, MemAvailable",
        ),
        "mem_buffers": Metric(
            unit="B",
            type="node",
            description="cache of block devices",
            source="/proc/meminfo, Buffers",
        ),
        "mem_cached": Metric(
            unit="B",
            type="node",
            description="cache of files; mem_shared is part of it",
            source="/proc/meminfo, Cached",
        ),
        "mem_shared": Metric(
            unit="B",
            type="node",
            description="shared memory and tmpfs",
            source="/proc/meminfo, Shmem",
        ),
        "mem_slab": Metric(
            unit="B",
            type="node",
            description="objects of the kernel",
            source="/proc/meminfo, Slab",
        ),
        "swap_used": Metric(
            unit="B",
            type="node",
            description="swap space in use",
            source="/proc/meminfo, SwapTotal - SwapFree",
        ),
        "swap_total": Metric(
            unit="B",
            type="node",
            description="swap space",
            source="/proc/meminfo, SwapTotal",
        ),
        "hugepages_used": Metric(
            unit="B",
            type="node",
            description="huge pages of the default size in use, of those set aside; mem_used"
            " holds all that are set aside",
            source="/proc/meminfo, (HugePages_Total - HugePages_Free) * Hugepagesize",
        ),
        "page_faults": Metric(
            unit="1/s",
            type="node",
            description="page faults, the major ones included",
            source="/proc/vmstat, pgfault",
        ),
        "major_page_faults": Metric(
            unit="1/s",
            type="node",
            description="page faults that waited for a disk",
            source="/proc/vmstat, pgmajfault",
        ),
        "swap_in": Metric(
            unit="B/s",
            type="node",
            description="memory brought back from swap space",
            source="/proc/vmstat, pswpin * page size",
        ),
        "swap_out": Metric(
            unit="B/s",
            type="node",
            description="memory put into swap space",
            source="/proc/vmstat, pswpout * page size",
        ),
        "oom_kills": Metric(
            unit="1/s",
            type="node",
            description="processes killed for want of memory, in cgroups as well",
            source="/proc/vmstat, oom_kill",
        ),
        **{
            metric: Metric(
                unit="B",
                type="memoryDomain" if metric in _ON_NODES else "node",
                description=description,
                source=f"/proc/meminfo{' and node*/meminfo' if metric in _ON_NODES else ''},"
                f" {field}",
                is_default=False,
            )
            for metric, (field, description) in _MORE.items()
        },
    }

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of /proc."""
        from ccagent.machine.procfs.checks import require_proc

        yield require_proc(node)

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read /proc/meminfo, /proc/vmstat and each node*/meminfo; NotHereError if all lack."""
        self.errors = []
        found: list[Gauge | Count] = []
        missing: list[NotHereError] = []
        wants_more = self.wanted is not None and not self.wanted.isdisjoint(_MORE)
        for path, place, parse in self._files(node):
            try:
                values = read_parsed(node, path, _with_more(parse) if wants_more else parse)
            except NotHereError as error:
                missing.append(error)
            except CcagentError as error:
                self.errors.append(str(error))
            else:
                found += (Gauge(metric, value, place) for metric, value in values.items())
        try:
            events = read_parsed(node, "proc/vmstat", parse_vmstat)
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

    def _files(self, node: Node) -> list[tuple[str, Place, Callable[[bytes], dict[str, int]]]]:
        """List what is in the form of meminfo. NUMA nodes come and go with hotplug and CXL."""
        files: list[tuple[str, Place, Callable[[bytes], dict[str, int]]]] = [
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
            place = Place("memoryDomain", str(number))
            files.append((f"{_NODES}/node{number}/meminfo", place, parse_domain_memory))
        return files
