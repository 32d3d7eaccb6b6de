"""Rates of a Lustre client: deltas of its counters since the last sample, and bandwidth.

Names are those of ClusterCockpit's collector. The counters are always sent, too.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ccagent.agents.lustre.statistics.client_statistics import COUNTERS, NAMES, read_mount
from ccagent.agents.lustre.statistics.metric import INTEGERS, Quantity
from ccagent.errors import UnparsableError
from ccagent.records.points import Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.agents.lustre.parameters import Parameter
    from ccagent.agents.lustre.statistics.metric import TargetScope

_BANDWIDTHS = {"lustre_read_bytes": "lustre_read_bw", "lustre_write_bytes": "lustre_write_bw"}

METRICS = {
    f"{name}_diff": Quantity(metric.unit, f"{metric.description}, since the previous sample")
    for name, metric in COUNTERS.items()
} | {
    name: Quantity("B/s", f"{COUNTERS[counter].description}, since the previous sample")
    for counter, name in _BANDWIDTHS.items()
}


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
                for reading in read_mount(found["place"], "stats", value, lambda _: None):
                    if reading.name not in COUNTERS:
                        continue
                    now[reading.name] = reading.value
                    known = None if before is None else before.get(reading.name)
                    if known is None:
                        continue
                    since = reading.value - known if reading.value >= known else reading.value
                    for place in (reading.place, None):
                        sums = done.setdefault(place, {})
                        sums[reading.name] = sums.get(reading.name, 0) + since
        elapsed = moment - self._moment
        self._counters, self._moment = counters, moment
        node = done.pop(None, {})
        points: list[Point] = []
        for place, sums in done.items():
            if place is not None:
                own = tags | {"stype": place.stype, "stype-id": place.stype_id}
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
        if name in _BANDWIDTHS and elapsed > 0:
            yield Point(_BANDWIDTHS[name], tags, since / elapsed, time)
