"""Reader of memory traffic per L3 cache, counted by Linux (resctrl: Intel RDT, AMD PQoS).

Source: Documentation/filesystems/resctrl.rst of Linux.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.machine.cgroup.files import parse_amount
from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from ccagent.machine.node import Node

_ROOT = "sys/fs/resctrl"
_NO_GROUPS = frozenset({"info", "mon_data", "mon_groups"})
_MOST = 1000


def read_bandwidth_counter(node: Node) -> int | None:
    """Return the total B of memory traffic of all control groups; None if not counted.

    The counter of a control group includes its monitoring groups.
    """
    total, is_known = 0, False
    for group in _groups(node):
        try:
            caches = node.list(f"{group}/mon_data")
        except CcagentError:
            continue
        for cache in caches:
            if cache.startswith("mon_L3_"):
                try:
                    path = f"{group}/mon_data/{cache}/mbm_total_bytes"
                    total += read_parsed(node, path, parse_amount)
                except CcagentError:
                    continue  # `Unavailable`, or the group was just removed
                is_known = True
    return total if is_known else None


def _groups(node: Node) -> list[str]:
    try:
        names = node.directories(_ROOT)
    except CcagentError:
        return []
    return [_ROOT, *(f"{_ROOT}/{name}" for name in names if name not in _NO_GROUPS)][:_MOST]
