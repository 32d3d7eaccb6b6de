"""Statistics besides jobstats: groups, their metrics, and points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.lustre.statistics import client_statistics, lnet, server_statistics
from ccagent.agents.lustre.statistics.metric import INTEGERS, Parameter, parse_parameters, show_text
from ccagent.errors import CcagentError, NotHereError, ProgramError, UnparsableError
from ccagent.records.points import Point

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ccagent.agents.lustre.statistics.metric import (
        Measurement,
        MetricGroup,
        Quantity,
        TargetScope,
    )
    from ccagent.machine.node import Node


GROUPS: dict[str, MetricGroup] = {
    **server_statistics.GROUPS,
    **server_statistics.BRW_GROUPS,
    **lnet.GROUPS,
    **client_statistics.GROUPS,
}
"""Groups by their name in the configuration."""

METRICS: dict[str, Quantity] = {
    **server_statistics.METRICS,
    **server_statistics.BRW_METRICS,
    **lnet.METRICS,
    **client_statistics.METRICS,
    **client_statistics.RATE_METRICS,
}
"""Unit and meaning of every metric; a capital word in a name is a placeholder."""

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
    `tags` alone, combines them as defined in METRICS. It comes last, because a consumer without
    these tags keeps the last value of a name. A repeated parameter counts once. Unparsable values
    are skipped, with one message per parameter in `errors`.
    """
    values = _Values()
    for reading in _readings(parameters, [GROUPS[name] for name in groups], errors):
        values.add(reading)
    yield from values.points(tags, time, errors)


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
            try:
                yield from group.read(
                    fields.get("place", ""), fields.get("leaf", ""), value, complaints
                )
            except UnparsableError as error:
                complaints(str(error))
            if complaints.first:
                errors.append(f"{show_text(name)}: {complaints}")


class _Complaints:
    """Keeps the first message about a parameter and counts further ones."""

    def __init__(self) -> None:
        self.first = ""
        self._others = 0

    def __call__(self, sentence: str) -> None:
        if self.first:
            self._others += 1
        else:
            self.first = sentence

    def __str__(self) -> str:
        return f"{self.first} (and {self._others} more)" if self._others else self.first


class _Values:
    """The values of each metric by scope, in the order of reading."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}
        self._values: dict[str, dict[TargetScope | None, int]] = {}

    def add(self, reading: Measurement) -> None:
        """Add a measurement to the values of its metric and scope."""
        entry = self._entries.setdefault(reading.name, reading.entry)
        places = self._values.setdefault(reading.name, {})
        known = places.get(reading.place)
        metric = METRICS[entry]
        if known is None:
            places[reading.place] = reading.value
        elif reading.place is not None or metric.combined != "sum":
            places[reading.place] = metric.combine((known, reading.value))

    def points(self, tags: dict[str, str], time: float, errors: list[str]) -> Iterator[Point]:
        """Yield the points of all scopes; the points of the node come last."""
        of_places: dict[TargetScope, dict[str, str]] = {}
        for name, places in self._values.items():
            if None not in places:
                places[None] = METRICS[self._entries[name]].combine(places.values())
            for place, value in places.items():
                if value not in INTEGERS:
                    errors.append(f"{name}: {value} is too large to send")
                elif place is not None:
                    own = of_places.get(place)
                    if own is None:
                        own = tags | {"stype": place.stype, "stype-id": place.stype_id}
                        of_places[place] = own
                    yield Point(name, own, value, time)
        for name, places in self._values.items():
            value = places[None]
            if value in INTEGERS:
                yield Point(name, tags, value, time)


_OUTPUT_LIMIT = 64 * 1024 * 1024


def read_statistics(
    node: Node, groups: Collection[str], lctl: str, time_limit: float, errors: list[str]
) -> list[Parameter]:
    """Return the parameters, program outputs and files of the groups on this node.

    Missing ones are skipped silently; other failures add a message to `errors`.
    """
    found: list[Parameter] = []
    wanted = [GROUPS[name] for name in groups]
    for program in dict.fromkeys(program for group in wanted for program in group.programs):
        output = _run(node, [*program], time_limit, errors)
        if output:
            found.append(Parameter(" ".join(program), output))
    # lctl stops at a pattern without a match, and servers differ in their parameters.
    for pattern in dict.fromkeys(pattern for group in wanted for pattern in group.patterns):
        output = _run(node, [lctl, "get_param", pattern], time_limit, errors)
        found += parse_parameters(output)
    for path in dict.fromkeys(path for group in wanted for path in group.files):
        try:
            found.append(Parameter(path, node.read(path)))
        except NotHereError:
            continue
        except CcagentError as error:
            errors.append(str(error))
    return found


def _run(node: Node, command: list[str], time_limit: float, errors: list[str]) -> bytes:
    """Return the output of a program, up to a failure."""
    parts: list[bytes] = []
    try:
        parts.extend(node.stream(command, time_limit=time_limit, output_limit=_OUTPUT_LIMIT))
    except NotHereError:
        return b""
    except ProgramError as error:
        if "No such file" not in str(error):
            errors.append(str(error))
    except CcagentError as error:
        errors.append(str(error))
    return b"".join(parts)
