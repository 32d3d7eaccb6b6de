"""All checks, side by side, each with a time limit, and the impact of their findings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ccagent.doctor.cgroups import check_cgroups
from ccagent.doctor.clock import check_clock
from ccagent.doctor.energy import check_energy
from ccagent.doctor.finding import Finding, with_impact
from ccagent.doctor.gpus import check_gpus
from ccagent.doctor.hardware_counters import check_counters
from ccagent.doctor.identity import check_identity
from ccagent.doctor.infiniband import check_infiniband
from ccagent.doctor.limits import check_limits
from ccagent.doctor.lustre import check_lustre
from ccagent.doctor.places import check_places
from ccagent.doctor.processes import check_processes
from ccagent.doctor.programs import check_programs
from ccagent.doctor.service import check_service
from ccagent.doctor.sinks import SECONDS, check_sinks
from ccagent.doctor.space import check_space
from ccagent.doctor.task_iterator import check_task_iterator
from ccagent.doctor.together import together
from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ccagent.doctor.demands import Site

CHECKS: dict[str, Callable[[Site], Iterable[Finding]]] = {
    "identity": check_identity,
    "processes": check_processes,
    "limits": check_limits,
    "control groups": check_cgroups,
    "kernel": check_task_iterator,
    "programs": check_programs,
    "GPUs": check_gpus,
    "Lustre": check_lustre,
    "energy": check_energy,
    "hardware counters": check_counters,
    "InfiniBand": check_infiniband,
    "clock": check_clock,
    "space": check_space,
    "daemon": check_service,
    "directories": check_places,
    "sinks": check_sinks,
}
"""By the name under which one that fails is told."""

_AREAS = (
    "identity", "processes", "control groups", "kernel", "slurm", "lustre", "GPUs", "topology",
    "programs", "power", "network", "clock", "outbox", "daemon", "sinks",
)  # fmt: skip
"""In which order they are told."""

LIMIT = SECONDS + 5.0
"""Seconds after which a check that hangs is left behind."""


def examine(
    site: Site,
    checks: dict[str, Callable[[Site], Iterable[Finding]]] = CHECKS,
    seconds: float = LIMIT,
) -> list[Finding]:
    """Run the checks and return their findings by area, with their impact."""
    tasks = [partial(_run, name, check, site) for name, check in checks.items()]
    findings: list[Finding] = []
    for name, outcome in zip(checks, together(tasks, seconds), strict=True):
        if isinstance(outcome, CcagentError):
            findings.append(_failed(name, outcome))
        else:
            findings += outcome
    areas = dict.fromkeys([*_AREAS, *(finding.area for finding in findings)])
    order = {area: number for number, area in enumerate(areas)}
    findings.sort(key=lambda finding: order[finding.area])
    return [with_impact(finding, site.demands) for finding in findings]


def _run(name: str, check: Callable[[Site], Iterable[Finding]], site: Site) -> list[Finding]:
    """Run a check; what it has found before it fails counts."""
    findings: list[Finding] = []
    try:
        for finding in check(site):
            findings.append(finding)  # noqa: PERF402 - extend would lose them when it fails
    except CcagentError as error:
        findings.append(_failed(name, error))
    return findings


def stopped(findings: Sequence[Finding]) -> list[str]:
    """Name what is configured and can't work, each once."""
    return list(dict.fromkeys(name for finding in findings for name in finding.stops))


def _failed(name: str, error: CcagentError) -> Finding:
    return Finding(
        area=name,
        subject=f"check of {name}",
        state="problem",
        found=str(error),
        impact=["ccagent doctor: what it would have found"],
        fix="see whether what it looks at hangs, and whether this user may read it",
    )
