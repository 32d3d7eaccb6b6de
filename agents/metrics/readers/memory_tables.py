"""Metrics of the reader of memory."""

from __future__ import annotations

from ccagent.agents.metrics.readers.base import Metric

ON_DEMAND = {
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
    "mem_hugetlb": ("Hugetlb", "huge pages of all sizes that are reserved in the pool"),
    "mem_direct_mapped_4k": ("DirectMap4k", "mapped for the kernel in pages of 4 KiB"),
    "mem_direct_mapped_2m": ("DirectMap2M", "mapped for the kernel in pages of 2 MiB"),
    "mem_direct_mapped_1g": ("DirectMap1G", "mapped for the kernel in pages of 1 GiB"),
}
"""Metrics on demand: field of meminfo, description."""
_OF_DOMAINS = frozenset(ON_DEMAND) - {
    "mem_committed", "mem_commit_limit", "mem_vmalloc_used", "mem_percpu", "mem_hugetlb",
    "mem_direct_mapped_4k", "mem_direct_mapped_2m", "mem_direct_mapped_1g",
}  # fmt: skip
"""Metrics on demand that NUMA nodes have too."""

_DEFAULTS = {
    "mem_used": (
        "B",
        "memory of programs and the kernel, without caches that can be given up",
        (
            "/proc/meminfo, MemTotal - MemAvailable; node*/meminfo, MemTotal - MemFree"
            " - Active(file) - Inactive(file) - KReclaimable"
        ),
    ),
    "mem_free": (
        "B",
        "memory that nothing uses, not even as a cache",
        "/proc/meminfo and node*/meminfo, MemFree",
    ),
    "mem_available": (
        "B",
        "memory that new programs can have without swapping",
        "/proc/meminfo, MemAvailable",
    ),
    "mem_buffers": ("B", "cache of block devices", "/proc/meminfo, Buffers"),
    "mem_cached": ("B", "cache of files; mem_shared is part of it", "/proc/meminfo, Cached"),
    "mem_shared": ("B", "shared memory and tmpfs", "/proc/meminfo, Shmem"),
    "mem_slab": ("B", "objects of the kernel", "/proc/meminfo, Slab"),
    "swap_used": ("B", "swap space in use", "/proc/meminfo, SwapTotal - SwapFree"),
    "swap_total": ("B", "swap space", "/proc/meminfo, SwapTotal"),
    "hugepages_used": (
        "B",
        (
            "huge pages of the default size in use, of those reserved; mem_used holds all that are"
            " reserved"
        ),
        "/proc/meminfo, (HugePages_Total - HugePages_Free) * Hugepagesize",
    ),
    "page_faults": ("1/s", "page faults, the major ones included", "/proc/vmstat, pgfault"),
    "major_page_faults": ("1/s", "page faults that waited for a disk", "/proc/vmstat, pgmajfault"),
    "swap_in": ("B/s", "memory brought back from swap space", "/proc/vmstat, pswpin * page size"),
    "swap_out": ("B/s", "memory put into swap space", "/proc/vmstat, pswpout * page size"),
    "oom_kills": (
        "1/s",
        "processes killed for want of memory, in cgroups as well",
        "/proc/vmstat, oom_kill",
    ),
}
"""Metrics that are always sent: unit, description, source."""

MEMORY_METRICS: dict[str, Metric] = {
    metric: Metric(
        unit=unit,
        type="memoryDomain" if metric in {"mem_used", "mem_free"} else "node",
        description=description,
        source=source,
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
