"""Metrics of disk requests: merges, latency, queues, discards and flushes.

Source: Documentation/admin-guide/iostats.rst of Linux. Its field 1 is index 0 here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.metrics.readers.base import NODE, Gauge, Metric, Scope
from ccagent.machine.counters import compute_deltas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SECTOR = 512
_IN_PROGRESS = 8
_WRAPS_AT = 0xFFFF_FFFF
"""The kernel counts milliseconds in unsigned int."""


class Rate(NamedTuple):
    """Metric computed as a rate: index of the counter, factor."""

    metric: str
    value: int
    scale: float = 1.0


class TimeEach(NamedTuple):
    """Metric computed as mean time of a request: indices of milliseconds and of requests."""

    metric: str
    milliseconds: int
    requests: int


_RATES = (
    Rate("disk_reads_merged", 1),
    Rate("disk_writes_merged", 5),
    Rate("disk_queue", 10, 1e-3),
    Rate("disk_discards", 11),
    Rate("disk_discard", 13, _SECTOR),
    Rate("disk_flushes", 15),
)
_TIMES = (
    TimeEach("disk_read_time", 3, 0),
    TimeEach("disk_write_time", 7, 4),
    TimeEach("disk_discard_time", 14, 11),
    TimeEach("disk_flush_time", 16, 15),
)


def _metric(unit: str, description: str, source: str) -> Metric:
    return Metric(
        unit=unit,
        type="node",
        description=f"{description}; with by-device",
        source=f"/proc/diskstats, {source}",
        aggregation="mean" if unit == "s" else "sum",
    )


REQUEST_METRICS: dict[str, Metric] = {
    "disk_reads_merged": _metric("1/s", "reads merged with another", "field 2"),
    "disk_writes_merged": _metric("1/s", "writes merged with another", "field 6"),
    "disk_read_time": _metric(
        "s",
        "mean time of a read from request to completion; none without reads",
        "field 4 / field 1",
    ),
    "disk_write_time": _metric(
        "s",
        "mean time of a write from request to completion; none without writes",
        "field 8 / field 5",
    ),
    "disk_in_progress": _metric("", "requests in progress, current value", "field 9"),
    "disk_queue": _metric("", "requests in progress, mean", "field 11"),
    "disk_discards": _metric("1/s", "discards completed", "field 12"),
    "disk_discard": _metric("B/s", "bytes discarded", "field 14 * 512"),
    "disk_discard_time": _metric(
        "s", "mean time of a discard; none without discards", "field 15 / field 12"
    ),
    "disk_flushes": _metric("1/s", "flushes completed", "field 16"),
    "disk_flush_time": _metric(
        "s", "mean time of a flush; none without flushes", "field 17 / field 16"
    ),
}


def request_figures(delta: Sequence[int], seconds: float) -> dict[str, float]:
    """Return the metrics computed from the deltas of a disk's values over `seconds`.

    Older kernels have 11 or 15 of the 17 values; metrics of missing values are omitted.
    """
    found = {
        metric: delta[value] * scale / seconds
        for metric, value, scale in _RATES
        if value < len(delta)
    }
    for metric, milliseconds, requests in _TIMES:
        if max(milliseconds, requests) < len(delta) and delta[requests]:
            found[metric] = delta[milliseconds] / delta[requests] / 1000
    return found


class DiskRequests:
    """Computes metrics of each disk and of all disks together from two readings."""

    def __init__(self) -> None:
        self._before: Mapping[str, Sequence[int]] = {}

    def add(self, disks: Mapping[str, Sequence[int]], seconds: float) -> list[Gauge]:
        """Return the metrics since the last reading; the metrics of the node come last.

        disks: all values by name, at least eleven. A new disk has only current values.
        """
        before, self._before = self._before, disks
        found: list[Gauge] = []
        deltas: list[list[int]] = []
        for name in sorted(disks):
            scope, new = device_scope(name), disks[name]
            found.append(Gauge("disk_in_progress", new[_IN_PROGRESS], scope))
            old = before.get(name)
            if seconds <= 0 or old is None or len(old) != len(new):
                continue
            delta = compute_disk_deltas(old, new)
            deltas.append(delta)
            figures = request_figures(delta, seconds)
            found += (Gauge(metric, figure, scope) for metric, figure in figures.items())
        found.append(Gauge("disk_in_progress", sum(new[_IN_PROGRESS] for new in disks.values())))
        if deltas:
            total = [sum(column) for column in zip(*deltas, strict=False)]
            figures = request_figures(total, seconds)
            found += (Gauge(metric, figure, NODE) for metric, figure in figures.items())
        return found


def compute_disk_deltas(old: Sequence[int], new: Sequence[int]) -> list[int]:
    """Return the deltas of a disk's values; 0 for requests in progress (a gauge)."""
    before, after = list(old), list(new)
    before[_IN_PROGRESS] = after[_IN_PROGRESS] = 0
    return compute_deltas(before, after, _WRAPS_AT)


def device_scope(name: str) -> Scope:
    """Return the scope of a disk."""
    return Scope(stype="disk", stype_id=name)
