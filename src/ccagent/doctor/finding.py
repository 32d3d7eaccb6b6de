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
    not there, `problem` is there and does not do, or does harm. found: what was seen. costs: what
    is lost, each with who loses it. stops: what is configured and can't work for it, such as
    `agent jobs`, `sink backend`. advice: what to do, empty if there is nothing.
    """

    area: str
    subject: str
    state: State
    found: str
    costs: list[str] = []
    stops: list[str] = []
    advice: str = ""


def with_costs(finding: Finding, demands: Iterable[Demand]) -> Finding:
    """Add what agents lose by it, those that aren't configured after the others."""
    if finding.state == "good":
        return finding
    costs, stops = list(finding.costs), list(finding.stops)
    for demand in demands:
        if demand.need.subject != finding.subject:
            continue
        agent = demand.agent if demand.is_configured else f"{demand.agent} (not configured)"
        costs.append(f"{agent}: {demand.need.purpose}")
        if demand.need.is_vital and demand.is_configured:
            stops.append(f"agent {demand.agent}")
    return msgspec.structs.replace(
        finding, costs=list(dict.fromkeys(costs)), stops=list(dict.fromkeys(stops))
    )
