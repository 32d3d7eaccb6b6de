"""Check of the energy counters of RAPL."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ccagent.machine.checks import Check, CheckResult, list_names
from ccagent.machine.powercap import FIX, POWERCAP, ZONE

if TYPE_CHECKING:
    from ccagent.machine.node import Node


def require_rapl(node: Node, impact: str = "") -> Check:
    """Return the check of RAPL."""
    return Check("power", "RAPL", partial(find_zones, node), impact)


def find_zones(node: Node) -> CheckResult:
    """Return the result with the number of zones that this user can read."""
    names = [name for name in list_names(node, POWERCAP) if ZONE.fullmatch(name)]
    if not names:
        fix = "on hardware: modprobe intel_rapl_msr; virtual machines have none"
        return CheckResult("missing", f"no zones in /{POWERCAP}", fix)
    refused = [name for name in names if not node.is_readable(f"{POWERCAP}/{name}/energy_uj")]
    if refused:
        found = f"this user may not read energy_uj of {len(refused)} of {len(names)} zones"
        return CheckResult("problem", found, FIX)
    return CheckResult("good", f"{len(names)} zones can be read")
