"""Controls `os.*`: settings of the kernel's memory management for the whole node.

Source: Documentation/admin-guide/sysctl/{kernel,vm}.rst, mm/transhuge.rst of Linux.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.controls.control import (
    NO_LIMITS,
    NODE_DEVICE,
    BracketedFeature,
    Control,
    ControlClass,
    FileFeature,
    Kind,
    Limits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.controls.control import Feature
    from ccagent.machine.node import Node

_KERNEL = "proc/sys/kernel"
_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage"


class _File(NamedTuple):
    name: str
    directory: str
    file: str
    kind: Kind
    description: str
    unit: str = ""
    limits: Limits | None = None


_FILES = (
    _File(
        "numa_balancing", _KERNEL, "numa_balancing", "integer",
        "Automatic NUMA balancing: 0 off, 1 on, 2 memory tiering", "", Limits(0, 3),
    ),
    _File(
        "numa_balancing_scan_delay", _KERNEL, "numa_balancing_scan_delay_ms", "integer",
        "Delay until a task is scanned", "ms",
    ),
    _File(
        "numa_balancing_scan_period_min", _KERNEL, "numa_balancing_scan_period_min_ms", "integer",
        "Shortest time between scans", "ms",
    ),
    _File(
        "numa_balancing_scan_period_max", _KERNEL, "numa_balancing_scan_period_max_ms", "integer",
        "Longest time between scans", "ms",
    ),
    _File(
        "numa_balancing_scan_size", _KERNEL, "numa_balancing_scan_size_mb", "integer",
        "Memory that one scan covers", "MB",
    ),
    _File(
        "numa_balancing_promote_rate_limit", _KERNEL, "numa_balancing_promote_rate_limit_MBps",
        "integer", "Limit of promotions between tiers", "MB/s",
    ),
    _File(
        "transparent_hugepage", _HUGE_PAGES, "enabled", "choice",
        "Transparent huge pages", "", Limits(),
    ),
    _File(
        "swappiness", "proc/sys/vm", "swappiness", "integer",
        "Preference for swapping", "", Limits(0, 200),
    ),
)  # fmt: skip


class OsSettings(ControlClass):
    """NUMA balancing, transparent huge pages and swappiness."""

    category = "os"
    needs: ClassVar[str] = "a kernel with CONFIG_NUMA_BALANCING, CONFIG_TRANSPARENT_HUGEPAGE"

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features for the files of this kernel."""
        for file in _FILES:
            if not node.exists(f"{file.directory}/{file.file}"):
                continue
            control = Control(
                category="os",
                name=file.name,
                device_type="node",
                description=file.description,
                kind=file.kind,
                unit=file.unit,
                is_writable=file.limits is not None,
            )
            kind = BracketedFeature if file.kind == "choice" else FileFeature
            yield kind(
                node,
                control,
                {NODE_DEVICE: file.directory},
                file.file,
                find_limits=partial(_fixed, file.limits or NO_LIMITS),
            )


def _fixed(limits: Limits, directory: str) -> Limits:
    del directory
    return limits
