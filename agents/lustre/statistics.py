"""Statistics besides jobstats: groups, their metrics, points, and rates of clients.

Source of `llite.*.stats`, the operations of a client's mounts: lproc_llite.c of Lustre. Their names
are those of ClusterCockpit's collector; the web front end expects them.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from ccagent.agents.lustre import lnet, server_statistics
from ccagent.agents.lustre.jobstats.entry import BANDWIDTHS
from ccagent.agents.lustre.jobstats.source import run_until_failure
from ccagent.agents.lustre.metric import (
    INTEGERS,
    Measurement,
    MetricGroup,
    Parameter,
    TargetScope,
    operation_readings,
    parse_operations,
    parse_parameters,
    show_text,
)
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.records.points import Point

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from ccagent.agents.lustre.metric import Complain
    from ccagent.machine.node import Node

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

# The name of a mount is its file system and the address of its super block.
_MOUNT = re.compile(r"([A-Za-z0-9_-]{1,64})-[0-9a-f]{8,16}", re.ASCII)
_MOUNT_NAMES = re.compile(r"llite\.(?P<owner>[^.]+)\.(?P<leaf>stats)", re.ASCII)

COUNTERS: tuple[str, ...] = (
    "lustre_read_bytes", "lustre_write_bytes", "lustre_read_requests", "lustre_write_requests",
    "lustre_open", "lustre_close", "lustre_getattr", "lustre_setattr", "lustre_statfs",
    "lustre_inode_permission",
)  # fmt: skip
"""Metrics of dashboards; sent with 0 if the operation never happened."""


def read_mount(owner: str, _leaf: str, value: bytes, complain: Complain) -> Iterator[Measurement]:
    """Yield the operations of a mount, with its file system as scope.

    A file system mounted twice has two such parameters: their values are summed.
    """
    scope = TargetScope("filesystem", file_system(owner))
    # The kernel omits operations that never happened.
    missing = dict.fromkeys(COUNTERS) if b"snapshot_time" in value else {}

    def drop_spoiled(sentence: str) -> None:
        missing.clear()
        complain(sentence)

    for operation in parse_operations(value, drop_spoiled):
        for reading in operation_readings("lustre", scope, operation):
            missing.pop(reading.name, None)
            yield reading
    for name in missing:
        yield Measurement(name, 0, scope)


def file_system(mount: str) -> str:
    """Return the file system of `scratch-ff47bce9ca35d800`. Raise UnparsableError if invalid."""
    found = _MOUNT.fullmatch(mount)
    if found is None:
        raise UnparsableError(f"{show_text(mount)} is no mount of a file system")
    return found[1]


GROUPS: dict[str, MetricGroup] = {
    **server_statistics.GROUPS,
    **lnet.GROUPS,
    "llite": MetricGroup(_MOUNT_NAMES, read_mount, ("llite.*.stats",)),
}
"""Groups by their name in the configuration."""


def points_of(
    parameters: Iterable[Parameter],
    groups: Collection[str],
    tags: dict[str, str],
    time: float,
    errors: list[str],
) -> Iterator[Point]:
    """Yield the points of the parameters that belong to `groups`, names of GROUPS.

    Values of targets, file systems and networks have `stype` and `stype-id`. The node value, with
    `tags` alone, combines them. It comes last, because a consumer without these tags keeps the last
    value of a name. A repeated parameter counts once. Unparsable values are skipped, with one
    message per parameter in `errors`.
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


class ClientRates:
    """Keeps the counters of each mount; forgets removed mounts."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[str, int]] = {}
        self._moment = 0.0

    def points(
        self, parameters: Iterable[Parameter], tags: dict[str, str], time: float, moment: float
    ) -> list[Point]:
        """Return the points of one sample, those of file systems before those of the node.

        moment: seconds of a monotonic clock. A new mount has no delta yet, because the start of its
        counters is unknown. A counter that fell was reset to 0.
        """
        counters: dict[str, dict[str, int]] = {}
        done: dict[TargetScope | None, dict[str, int]] = {}
        for name, value in parameters:
            found = _MOUNT_NAMES.fullmatch(name)
            if found is None or name in counters:
                continue
            before = self._counters.get(name)
            counters[name] = now = {}
            with contextlib.suppress(UnparsableError):
                for reading in read_mount(found["owner"], "stats", value, lambda _: None):
                    if reading.name not in COUNTERS:
                        continue
                    now[reading.name] = reading.value
                    known = None if before is None else before.get(reading.name)
                    if known is None:
                        continue
                    since = reading.value - known if reading.value >= known else reading.value
                    for scope in (reading.scope, None):
                        sums = done.setdefault(scope, {})
                        sums[reading.name] = sums.get(reading.name, 0) + since
        elapsed = moment - self._moment
        self._counters, self._moment = counters, moment
        node = done.pop(None, {})
        points: list[Point] = []
        for scope, sums in done.items():
            if scope is not None:
                own = tags | {"stype": scope.stype, "stype-id": scope.stype_id}
                points += _points_of_rates(sums, own, time, elapsed)
        points += _points_of_rates(node, tags, time, elapsed)
        return points


def _points_of_rates(
    sums: dict[str, int], tags: dict[str, str], time: float, elapsed: float
) -> Iterator[Point]:
    for name, since in sums.items():
        if since not in INTEGERS:
            continue
        yield Point(f"{name}_diff", tags, since, time)
        if name in BANDWIDTHS and elapsed > 0:
            yield Point(BANDWIDTHS[name], tags, since / elapsed, time)
