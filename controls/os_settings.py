"""Controls `os.*`: settings of the kernel's memory management for the whole node.

Source: Documentation/admin-guide/sysctl/{kernel,vm}.rst, mm/transhuge.rst of Linux.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from ccagent.controls.control import (
    NO_LIMITS,
    NODE_DEVICE,
    BracketedFeature,
    ControlClass,
    KernelFile,
    Limits,
    find_files,
    list_settable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.controls.control import Feature
    from ccagent.machine.node import Node


_FILES = {
    "proc/sys/kernel": (
        KernelFile(
            "numa_balancing", "numa_balancing", "integer",
            "Automatic NUMA balancing: 0 off, 1 on, 2 memory tiering", "", Limits(0, 3),
        ),
        KernelFile(
            "numa_balancing_scan_delay", "numa_balancing_scan_delay_ms", "integer",
            "Delay until a task is scanned", "ms",
        ),
        KernelFile(
            "numa_balancing_scan_period_min", "numa_balancing_scan_period_min_ms", "integer",
            "Shortest time between scans", "ms",
        ),
        KernelFile(
            "numa_balancing_scan_period_max", "numa_balancing_scan_period_max_ms", "integer",
            "Longest time between scans", "ms",
        ),
        KernelFile(
            "numa_balancing_scan_size", "numa_balancing_scan_size_mb", "integer",
            "Memory that one scan covers", "MB",
        ),
        KernelFile(
            "numa_balancing_promote_rate_limit", "numa_balancing_promote_rate_limit_MBps",
            "integer", "Limit of promotions between tiers", "MB/s",
        ),
    ),
    "sys/kernel/mm/transparent_hugepage": (
        KernelFile(
            "transparent_hugepage", "enabled", "choice", "Transparent huge pages", "",
            NO_LIMITS, form=BracketedFeature,
        ),
    ),
    "proc/sys/vm": (
        KernelFile(
            "swappiness", "swappiness", "integer", "Preference for swapping", "", Limits(0, 200),
        ),
    ),
}  # fmt: skip
"""Rows by directory."""


class OsSettings(ControlClass):
    """NUMA balancing, transparent huge pages and swappiness."""

    category = "os"
    needs: ClassVar[str] = "a kernel with CONFIG_NUMA_BALANCING, CONFIG_TRANSPARENT_HUGEPAGE"
    settable = list_settable("os", chain.from_iterable(_FILES.values()))

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features for the files of this kernel."""
        for directory, table in _FILES.items():
            yield from find_files(node, "os", "node", {NODE_DEVICE: directory}, table)
