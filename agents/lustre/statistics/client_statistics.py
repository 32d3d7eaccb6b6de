"""A client's statistics: operations of its mounts, `llite.*.stats`, and their rates.

Source: lproc_llite.c of Lustre. Metric names are those of ClusterCockpit's collector; the web front
end expects them.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from ccagent.agents.lustre.jobstats.points import BANDWIDTHS
from ccagent.agents.lustre.statistics.metric import (
    INTEGERS,
    Measurement,
    MetricGroup,
    TargetScope,
    operation_readings,
    parse_operations,
    show_text,
)
from ccagent.errors import UnparsableError
from ccagent.records.points import Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.agents.lustre.statistics.metric import Complain, Parameter


# The name of a mount is its file system and the address of its super block.
_MOUNT = re.compile(r"([A-Za-z0-9_-]{1,64})-[0-9a-f]{8,16}", re.ASCII)
NAMES = re.compile(r"llite\.(?P<owner>[^.]+)\.(?P<leaf>stats)", re.ASCII)

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


GROUPS = {"llite": MetricGroup(NAMES, read_mount, ("llite.*.stats",))}


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
            found = NAMES.fullmatch(name)
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
                points += _points(sums, own, time, elapsed)
        points += _points(node, tags, time, elapsed)
        return points


def _points(
    sums: dict[str, int], tags: dict[str, str], time: float, elapsed: float
) -> Iterator[Point]:
    for name, since in sums.items():
        if since not in INTEGERS:
            continue
        yield Point(f"{name}_diff", tags, since, time)
        if name in BANDWIDTHS and elapsed > 0:
            yield Point(BANDWIDTHS[name], tags, since / elapsed, time)
