"""Parallel run of all checks, each with a time limit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ccagent.doctor.clock import check_clock
from ccagent.doctor.controls import check_controls
from ccagent.doctor.exporter import check_exporter, check_exporter_names
from ccagent.doctor.finding import Finding, make_finding
from ccagent.doctor.identity import check_identity, check_slurm_name
from ccagent.doctor.parallel import run_all
from ccagent.doctor.service import check_directories, check_service
from ccagent.doctor.sinks import SECONDS, check_sinks
from ccagent.doctor.space import check_space
from ccagent.errors import CcagentError
from ccagent.machine.checks import CheckResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ccagent.doctor.agent_checks import AgentCheck, Site

    GeneralCheck = Callable[[Site], Iterable[Finding]]

GENERAL: dict[str, GeneralCheck] = {
    "identity": check_identity,
    "name in Slurm": check_slurm_name,
    "clock": check_clock,
    "space": check_space,
    "daemon": check_service,
    "directories": check_directories,
    "controls": check_controls,
    "exporter": check_exporter,
    "exporter names": check_exporter_names,
    "sinks": check_sinks,
}
"""Checks that are independent of agents, by the name for the report of a failure."""

_AREAS = (
    "identity", "processes", "control groups", "kernel", "slurm", "lustre", "GPUs", "topology",
    "programs", "power", "network", "clock", "outbox", "daemon", "sinks",
    "controls", "exporter",
)  # fmt: skip
"""Areas in the order of the report."""

_FIX = "check whether its object hangs, and whether this user may read it"

LIMIT = SECONDS + 5.0
"""Seconds until a hanging check is abandoned."""


def examine(
    site: Site, general: Mapping[str, GeneralCheck] = GENERAL, seconds: float = LIMIT
) -> list[Finding]:
    """Run the general checks and those of the agents. Return their findings by area."""
    subjects: dict[str, list[AgentCheck]] = {}
    for each in site.checks:
        subjects.setdefault(each.check.subject, []).append(each)
    groups = [checks for checks in subjects.values() if _is_due(checks)]
    tasks = [partial(_run_general, name, check, site) for name, check in general.items()]
    tasks += [partial(_run_check, checks) for checks in groups]
    keys: list[str | Sequence[AgentCheck]] = [*general, *groups]
    findings: list[Finding] = []
    for key, outcome in zip(keys, run_all(tasks, seconds), strict=True):
        findings += [_fail(key, outcome)] if isinstance(outcome, CcagentError) else outcome
    areas = dict.fromkeys([*_AREAS, *(finding.area for finding in findings)])
    order = {area: number for number, area in enumerate(areas)}
    return sorted(findings, key=lambda finding: order[finding.area])


def list_stopped(findings: Sequence[Finding]) -> list[str]:
    """Return the configured agents and sinks that cannot work, each once."""
    return list(dict.fromkeys(name for finding in findings for name in finding.stops))


def _is_due(checks: Sequence[AgentCheck]) -> bool:
    return not checks[0].check.is_query or any(each.is_configured for each in checks)


def _run_general(name: str, check: GeneralCheck, site: Site) -> list[Finding]:
    """Run a check. Findings before a failure are kept."""
    findings: list[Finding] = []
    try:
        for finding in check(site):
            findings.append(finding)  # noqa: PERF402 - extend would lose them when it fails
    except CcagentError as error:
        findings.append(_fail(name, error))
    return findings


def _run_check(checks: Sequence[AgentCheck]) -> list[Finding]:
    result = checks[0].check.find()
    return [] if result is None else [make_finding(checks, result)]


def _fail(check: str | Sequence[AgentCheck], error: CcagentError) -> Finding:
    """Return the finding for a failed check: a general one by its name, or one of agents."""
    result = CheckResult("problem", str(error), _FIX)
    if not isinstance(check, str):
        return make_finding(check, result)
    impact = ["ccagent doctor: the findings of this check"]
    return Finding(check, f"check of {check}", *result, impact=impact)
