"""Findings of the doctor: something that is there, is missing, or is a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.machine.checks import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.doctor.agent_checks import AgentCheck
    from ccagent.machine.checks import CheckResult


class Finding(msgspec.Struct, frozen=True):
    """A finding, as `--json` has it.

    area: what it belongs to. subject: what was looked at, unique in the list. state, found, fix:
    those of a CheckResult. impact: what is lost, each with the agent that loses it. stops: what
    is configured and cannot work for it, such as `agent jobs`, `sink backend`. not_configured:
    what agents that are not configured would lose.
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
        """True for what only agents need that are not configured."""
        return bool(self.not_configured) and not self.impact and not self.stops


def make_finding(checks: Sequence[AgentCheck], result: CheckResult) -> Finding:
    """Return the finding for a result, with what the agents of these checks lose."""
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
