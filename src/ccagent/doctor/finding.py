"""Findings of the doctor: good results, missing things, and problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.machine.checks import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.doctor.agent_checks import AgentCheck
    from ccagent.machine.checks import CheckResult


class Finding(msgspec.Struct, frozen=True):
    """A finding, with the fields of `--json`.

    area: group of subjects. subject: name of the checked thing, unique in the list. state, found,
    fix: as in CheckResult. impact: losses, each with its agent. stops: configured agents and sinks
    that cannot work, such as `agent jobs`, `sink backend`. not_configured: losses of agents that
    are not configured.
    """

    area: str
    subject: str
    state: State
    found: str
    fix: str = ""
    impact: list[str] = []
    stops: list[str] = []
    not_configured: list[str] = []

    @property
    def is_for_others(self) -> bool:
        """True if only agents that are not configured need this."""
        return bool(self.not_configured) and not self.impact and not self.stops


def make_finding(checks: Sequence[AgentCheck], result: CheckResult) -> Finding:
    """Return the finding for a result, with the losses of the agents of these checks."""
    first = checks[0].check
    impact, stops, others = list[str](), list[str](), list[str]()
    for agent, is_configured, check in checks if result.state != "good" else ():
        if not check.impact:
            continue
        (impact if is_configured else others).append(f"{agent}: {check.impact}")
        if is_configured and check.is_vital:
            stops.append(f"agent {agent}")
    return Finding(
        first.area,
        first.subject,
        *result,
        impact=list(dict.fromkeys(impact)),
        stops=list(dict.fromkeys(stops)),
        not_configured=list(dict.fromkeys(others)),
    )
