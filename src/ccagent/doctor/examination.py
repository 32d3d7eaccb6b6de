"""The command `ccagent doctor`: a run of all checks, and its report as text or JSON."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import click
import msgspec

from ccagent.doctor.daemon import check_directories, check_service
from ccagent.doctor.finding import Finding, Site, list_agents, make_finding, open_checks, run_all
from ccagent.doctor.identity import check_clock, check_identity, check_slurm_name
from ccagent.doctor.services import (
    check_controls,
    check_exporter,
    check_exporter_names,
    check_migfra,
)
from ccagent.doctor.sinks import SECONDS, check_sinks
from ccagent.doctor.space import check_space
from ccagent.errors import CcagentError
from ccagent.log import printable
from ccagent.machine.checks import CheckResult
from ccagent.registry import AGENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ccagent.config.configuration import Configuration
    from ccagent.doctor.finding import AgentCheck

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
    "migfra": check_migfra,
    "sinks": check_sinks,
}
"""Checks that are independent of agents, by the name for the report of a failure."""

_AREAS = (
    "identity", "processes", "control groups", "kernel", "slurm", "lustre", "GPUs", "topology",
    "programs", "power", "network", "clock", "outbox", "daemon", "sinks",
    "controls", "exporter", "migfra",
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
    groups = [
        checks
        for checks in subjects.values()
        if not checks[0].check.is_query or any(each.is_configured for each in checks)
    ]
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


_COLOURS = {"good": "32", "missing": "33", "problem": "31"}
_UNLIMITED = 1_000_000


def format_report(findings: Sequence[Finding], agents: Sequence[str], *, width: int = 0) -> str:
    """Return the verdict, then the findings by area with impact and fix.

    agents: agents that count. width: columns of a terminal, for colours and line breaks; 0: no
    terminal.
    """
    shown = [finding for finding in findings if not finding.is_for_others]
    column = max((len(finding.subject) for finding in shown), default=0)
    lines = [_embolden(format_verdict(findings, agents), width), ""]
    for area, group in groupby(shown, key=lambda finding: finding.area):
        lines.append(_embolden(area, width))
        for finding in group:
            lines += _format_finding(finding, min(column, 32), width)
        lines.append("")
    if others := list_unconfigured(findings, agents):
        lines += [*_wrap(printable(others), width, 0), ""]
    return "\n".join(lines[:-1]) + "\n"


def format_verdict(findings: Sequence[Finding], agents: Sequence[str]) -> str:
    """Return the verdict. It starts with `ready` if the exit status is 0."""
    stops = list_stopped(findings)
    rest = [name for name in agents if f"agent {name}" not in stops]
    limited = [name for name in rest if _is_limited(name, findings)]
    fully = [name for name in rest if name not in limited]
    names = {"cannot work": stops, "works with limits": limited, "works": fully}
    parts = [f"{title}: {', '.join(each)}" for title, each in names.items() if each]
    state = "not ready" if choose_exit_status(findings) else "ready"
    return printable(f"{state}: {'; '.join(parts) or 'nothing is configured'}")


def list_unconfigured(findings: Sequence[Finding], agents: Sequence[str]) -> str:
    """Return a line on the agents that are not configured, with their missing requirements."""
    lacks: dict[str, list[str]] = {name: [] for name in AGENTS if name not in agents}
    for finding in findings:
        for lost in finding.not_configured:
            lacks.setdefault(lost.partition(":")[0], []).append(finding.subject)
    names = [
        f"{name} (lacks {', '.join(dict.fromkeys(subjects))})" if subjects else name
        for name, subjects in lacks.items()
    ]
    return f"not configured: {', '.join(names)}" if names else ""


def format_json(findings: Sequence[Finding]) -> str:
    """Return an array of objects with the fields of a finding.

    `costs` and `advice` are the old names of `impact` and `fix`. Invalid UTF-8 in file names
    becomes `?`.
    """
    objects = [
        msgspec.structs.asdict(finding) | {"costs": finding.impact, "advice": finding.fix}
        for finding in findings
    ]
    text = json.dumps(objects, ensure_ascii=False, indent=2)
    return text.encode("utf-8", "replace").decode()


def choose_exit_status(findings: Sequence[Finding]) -> int:
    """Return 1 if a configured agent or sink cannot work, else 0."""
    return int(bool(list_stopped(findings)))


def _is_limited(agent: str, findings: Sequence[Finding]) -> bool:
    return any(
        finding.state == "problem" and lost.startswith((f"{agent}: ", "all: "))
        for finding in findings
        for lost in finding.impact
    )


def _format_finding(finding: Finding, column: int, width: int) -> Iterator[str]:
    state = f"{finding.state:<7}"
    if width:
        state = f"\x1b[{_COLOURS[finding.state]}m{state}\x1b[0m"
    subject = printable(finding.subject)
    indent = " " * (13 + column)
    first, *rest = _wrap(printable(finding.found), width, len(indent))
    yield f"  {state}  {subject:<{column}}  {first}"
    yield from (indent + line for line in rest)
    for title, text in (
        ("impact", "; ".join(finding.impact)),
        ("stops", ", ".join(finding.stops)),
        ("fix", finding.fix),
    ):
        if text:
            first, *rest = _wrap(printable(text), width, len(indent) + 8)
            yield f"{indent}{title + ':':7} {first}"
            yield from (f"{indent}        {line}" for line in rest)


def _wrap(text: str, width: int, indent: int) -> list[str]:
    room = max(30, width - indent) if width else _UNLIMITED
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


def _embolden(text: str, width: int) -> str:
    return f"\x1b[1m{text}\x1b[0m" if width else text


def doctor(configuration: Configuration, *, is_json: bool, delivers: bool) -> int:
    """Print the findings for a configuration. Return the exit status: 0 or 1."""
    node = configuration.settings.make_node()
    with open_checks(configuration, node) as checks:
        findings = examine(Site(node, configuration, checks, delivers))
    if is_json:
        click.echo(format_json(findings))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        click.echo(format_report(findings, list_agents(configuration), width=width), nl=False)
    sys.stdout.flush()
    return choose_exit_status(findings)
