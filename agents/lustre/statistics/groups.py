"""Statistics besides jobstats: groups, their metrics, and points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.lustre.jobstats.source import run_until_failure
from ccagent.agents.lustre.statistics import client_statistics, lnet, server_statistics
from ccagent.agents.lustre.statistics.metric import INTEGERS, Parameter, parse_parameters, show_text
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.records.points import Point

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from ccagent.agents.lustre.statistics.metric import (
        Measurement,
        MetricGroup,
        TargetScope,
    )
    from ccagent.machine.node import Node


GROUPS: dict[str, MetricGroup] = {
    **server_statistics.GROUPS,
    **lnet.GROUPS,
    **client_statistics.GROUPS,
}
"""Groups by their name in the configuration."""

_COMBINED: dict[str, Callable[[Iterable[int]], int]] = {
    "lustre_health": min,
    "lustre_lnet_network_health_value": min,
    "lustre_recovery_duration": max,
    "lustre_recovery_status": max,
    "lustre_recovery_time_remaining": max,
    "lustre_unhealthy_devices": max,
}
"""How the node value of a metric combines those of its scopes; all others are summed."""

_SAME = ("osd-", "obdfilter.", "mdt.", "mgs.")


def points_of(
    parameters: Iterable[Parameter],
    groups: Collection[str],
    tags: dict[str, str],
    time: float,
    errors: list[str],
) -> Iterator[Point]:
    """Yield the points of the parameters that belong to `groups`, names of GROUPS.

    Values of targets, file systems and networks have `stype` and `stype-id`. The node value, with
    `tags` alone, combines them. It comes last, because a consumer without
    these tags keeps the last value of a name. A repeated parameter counts once. Unparsable values
    are skipped, with one message per parameter in `errors`.
    """
    metrics = _values_of(_readings(parameters, [GROUPS[name] for name in groups], errors))
    for name, values in metrics.items():
        if None not in values:
            values[None] = _COMBINED.get(name, sum)(values.values())
        for scope, value in values.items():
            if value not in INTEGERS:
                errors.append(f"{name}: {value} is too large to send")
            elif scope is not None:
                own = tags | {"stype": scope.stype, "stype-id": scope.stype_id}
                yield Point(name, own, value, time)
    for name, values in metrics.items():
        if values[None] in INTEGERS:
            yield Point(name, tags, values[None], time)


def _values_of(
    readings: Iterable[Measurement],
) -> dict[str, dict[TargetScope | None, int]]:
    """Return the values of each metric by scope, in the order of reading."""
    metrics: dict[str, dict[TargetScope | None, int]] = {}
    for name, value, scope in readings:
        values = metrics.setdefault(name, {})
        combine = _COMBINED.get(name, sum)
        if scope not in values:
            values[scope] = value
        elif scope is not None or combine is not sum:
            values[scope] = combine((values[scope], value))
    return metrics


class _Complaints:
    """Keeps the first message about a parameter and counts all."""

    def __init__(self) -> None:
        self.first = ""
        self.count = 0

    def __call__(self, sentence: str) -> None:
        self.first = self.first or sentence
        self.count += 1


def _readings(
    parameters: Iterable[Parameter], groups: list[MetricGroup], errors: list[str]
) -> Iterator[Measurement]:
    seen: set[str] = set()
    for name, value in parameters:
        for group in groups:
            found = group.names.fullmatch(name)
            if found is None:
                continue
            fields = found.groupdict("")
            # Two different parameters may have the name health_check.
            if fields:
                key = name.partition(".")[2] if name.startswith(_SAME) else name
                if key in seen:
                    continue
                seen.add(key)
            complaints = _Complaints()
            owner, leaf = fields.get("owner", ""), fields.get("leaf", "")
            try:
                yield from group.read(owner, leaf, value, complaints)
            except UnparsableError as error:
                complaints(str(error))
            if complaints.count:
                more = f" (and {complaints.count - 1} more)" if complaints.count > 1 else ""
                errors.append(f"{show_text(name)}: {complaints.first}{more}")


def read_statistics(
    node: Node, groups: Collection[str], lctl: str, time_limit: float, errors: list[str]
) -> list[Parameter]:
    """Return the parameters, program outputs and files of the groups on this node.

    Missing ones are skipped silently; other failures add a message to `errors`.
    """
    wanted = [GROUPS[name] for name in groups]
    found = [
        Parameter(" ".join(program), output)
        for program in dict.fromkeys(program for group in wanted for program in group.programs)
        if (output := run_until_failure(node, program, time_limit, errors))
    ]
    # lctl stops at a pattern without a match, and servers differ in their parameters.
    for pattern in dict.fromkeys(pattern for group in wanted for pattern in group.patterns):
        command = (lctl, "get_param", pattern)
        found += parse_parameters(run_until_failure(node, command, time_limit, errors) or b"")
    for path in dict.fromkeys(path for group in wanted for path in group.files):
        try:
            found.append(Parameter(path, node.read(path)))
        except NotHereError:
            continue
        except CcagentError as error:
            errors.append(str(error))
    return found
