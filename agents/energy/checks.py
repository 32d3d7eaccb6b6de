"""Checks of the sources of energy, for `ccagent doctor`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.sensors import HWMON, list_chips

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.machine.node import Node

_AREA = "energy"
_PMU = "sys/bus/event_source/devices/power"
_CRAY = "sys/cray/pm_counters"
_BMC = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")
_CPU_IMPACT = "energy of packages and memory, if powercap is unreadable, too"
_NODE_IMPACT = "energy of the node beyond its packages, memory and cards"


def require_power_pmu(node: Node, read: Callable[[], object]) -> Check:
    """Return the check of perf's energy PMU. read: reads its counters once."""
    return Check(_AREA, "RAPL by perf", partial(find_power_pmu, node, read), _CPU_IMPACT)


def require_node_meter(node: Node) -> Check:
    """Return the check of a meter of the whole node."""
    return Check(_AREA, "meter of the node", partial(find_node_meter, node), _NODE_IMPACT)


def require_dcmi(node: Node, programs: tuple[str, ...], *, is_configured: bool) -> Check:
    """Return the check of the BMC and of its client program, one of `programs`."""
    find = partial(find_dcmi, node, programs, is_configured=is_configured)
    return Check(_AREA, "DCMI", find, _NODE_IMPACT)


def find_power_pmu(node: Node, read: Callable[[], object]) -> CheckResult:
    """Check that the PMU `power` exists and this user may use it."""
    events = [name for name in node.list_names(f"{_PMU}/events") if "." not in name]
    if not events:
        fix = "on hardware: modprobe rapl (intel_rapl_perf before Linux 5.8); virtual machines"
        return CheckResult("missing", f"no /{_PMU}", f"{fix} have none")
    names = ", ".join(events)
    if not node.is_live:
        return CheckResult("good", names)
    try:
        read()
    except CcagentError as error:
        fix = (
            "give its service CapabilityBoundingSet= and AmbientCapabilities=CAP_PERFMON, or let"
            " powercap be read"
        )
        return CheckResult("problem", str(error), fix)
    return CheckResult("good", names)


def find_node_meter(node: Node) -> CheckResult:
    """Check for a meter at the node's input."""
    if "energy" in node.list_names(_CRAY):
        return CheckResult("good", f"/{_CRAY}")
    for chip in list_chips(node, node.list_names(HWMON), []):
        if chip.name == "power_meter":
            return CheckResult("good", f"ACPI power meter, /{HWMON}/hwmon{chip.number}")
    fix = (
        "on hardware with such a meter: modprobe acpi_power_meter; or let the BMC be asked:"
        ' meters = ["pm-counters", "hwmon", "dcmi"]'
    )
    return CheckResult("missing", "neither pm_counters nor an ACPI power meter", fix)


def find_dcmi(node: Node, programs: tuple[str, ...], *, is_configured: bool) -> CheckResult:
    """Check for a BMC and a client program."""
    from shutil import which

    if not is_configured and not any(node.exists(path) for path in _BMC):
        fix = "modprobe ipmi_si ipmi_devintf, if the node has a BMC"
        return CheckResult("missing", f"no /{_BMC[0]}", fix)
    program = next((name for name in programs if which(name)), "")
    if not program:
        fix = "install freeipmi-tools or ipmitool, or set agents.energy.dcmi-command"
        return CheckResult("missing", "no program that reads the power from the BMC", fix)
    return CheckResult("good", program)
