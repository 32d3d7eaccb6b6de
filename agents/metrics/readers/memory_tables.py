"""Metrics of the reader of memory."""

from __future__ import annotations

from ccagent.agents.metrics.readers.base import Metric

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
    "mem_used": (
        "B",
        "memory of programs and the kernel, without reclaimable caches",
        (
            "/proc/meminfo, MemTotal - MemAvailable; node*/meminfo, MemTotal - MemFree"
            " - Active(file) - Inactive(file) - KReclaimable"
        ),
    ),
    "mem_free": (
        "B",
        "unused memory (not even used as cache)",
        "/proc/meminfo and node*/meminfo, MemFree",
    ),
    "mem_available": (
        "B",
        "memory available to new programs without swapping",
        "/proc/meminfo, MemAvailable",
    ),
    "mem_buffers": ("B", "cache of block devices", "/proc/meminfo, Buffers"),
    "mem_cached": ("B", "page cache, including mem_shared", "/proc/meminfo, Cached"),
    "mem_shared": ("B", "shared memory and tmpfs", "/proc/meminfo, Shmem"),
    "mem_slab": ("B", "slab memory of the kernel", "/proc/meminfo, Slab"),
    "swap_used": ("B", "swap space in use", "/proc/meminfo, SwapTotal - SwapFree"),
    "swap_total": ("B", "swap space", "/proc/meminfo, SwapTotal"),
    "hugepages_used": (
        "B",
        (
            "used huge pages of the default size; mem_used includes all reserved huge pages,"
            " used or not"
        ),
        "/proc/meminfo, (HugePages_Total - HugePages_Free) * Hugepagesize",
    ),
    "page_faults": ("1/s", "page faults, including major faults", "/proc/vmstat, pgfault"),
    "major_page_faults": ("1/s", "major page faults (read from disk)", "/proc/vmstat, pgmajfault"),
    "swap_in": ("B/s", "memory swapped in", "/proc/vmstat, pswpin * page size"),
    "swap_out": ("B/s", "memory swapped out", "/proc/vmstat, pswpout * page size"),
    "oom_kills": (
        "1/s",
        "OOM kills, including those in cgroups",
        "/proc/vmstat, oom_kill",
    ),
}
"""Metrics sent by default: unit, description, source."""

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
