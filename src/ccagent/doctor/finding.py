"""What a check says: one thing that is there, isn't, or is a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.doctor.demands import Demand

State = Literal["good", "missing", "problem"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing, as `--json` has it.

    area: what it belongs to. subject: what was looked at, unique in the list. state: `missing` is
    not there, `problem` is there and does not do, or does harm. found: what was seen. impact: what
    is lost, each with the agent that loses it. stops: what is configured and cannot work for it,
    such as `agent jobs`, `sink backend`. fix: what to do, empty if there is nothing.
    not_configured: what agents that are not configured would lose.
    """

    area: str
    subject: str
    state: State
    found: str
    impact: list[str] = []
    stops: list[str] = []
    fix: str = ""
    not_configured: list[str] = []

    @property
    def is_for_others(self) -> bool:
        """True for what only agents need that are not configured."""
        return bool(self.not_configured) and not self.impact and not self.stops


def with_impact(finding: Finding, demands: Iterable[Demand]) -> Finding:
    """Add what agents lose by it."""
    if finding.state == "good":
        return finding
    impact, stops, others = list(finding.impact), list(finding.stops), list[str]()
    for demand in demands:
        if demand.need.subject != finding.subject:
            continue
        lost = f"{demand.agent}: {demand.need.purpose}"
        if not demand.is_configured:
            others.append(lost)
            continue
        impact.append(lost)
        if demand.need.is_vital:
            stops.append(f"agent {demand.agent}")
    return msgspec.structs.replace(
        finding,
        impact=list(dict.fromkeys(impact)),
        stops=list(dict.fromkeys(stops)),
        not_configured=list(dict.fromkeys(others)),
    )
