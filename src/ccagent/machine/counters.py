"""Deltas, rates and sums of counters that wrap, reset, appear and disappear; never negative."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import add
from typing import Generic, Protocol, TypeVar

P = TypeVar("P", bound=Hashable)

NEW = -1
"""`wraps_at` of a counter that started at 0 after the previous reading."""
_MOST = 200_000
_RETREAT = 3
"""Seconds by which the idle time of a hwthread may fall without a reset."""


def compute_delta(old: int, new: int, wraps_at: int = 0) -> int:
    """Return the growth of a counter. wraps_at: largest value before it wraps to 0; 0: never.

    A fallen counter has wrapped, if it can wrap. A counter that fell by half or more was reset: its
    delta is its value. A smaller fall comes from an inaccurate sum or a removed part: the delta is
    0.
    """
    if new >= old:
        return new - old
    if wraps_at >= old:
        return new - old + wraps_at + 1
    return new if new <= old // 2 else 0


def compute_deltas(old: Sequence[int], new: Sequence[int], wraps_at: int = 0) -> list[int]:
    """Return the growth of the counters of one part, by the rules of `compute_delta`.

    A counter has wrapped only if no other one fell, and if the wrapped delta is less than half of
    its range: a reset of the part sets several counters back.
    """
    deltas = [after - before for before, after in zip(old, new, strict=True)]
    if min(deltas, default=0) >= 0:
        return deltas
    is_single = sum(delta < 0 for delta in deltas) == 1
    for column, delta in enumerate(deltas):
        if delta < 0:
            wraps = is_single and delta + wraps_at + 1 <= wraps_at // 2
            deltas[column] = compute_delta(old[column], new[column], wraps_at if wraps else 0)
    return deltas


def hold_cpu_times(
    old: Sequence[int], new: Sequence[int], ticks: int, judged: slice = slice(None)
) -> list[int] | None:
    """Return the times of a hwthread without falls; None if it was offline meanwhile.

    idle and iowait sometimes fall slightly (get_cpu_iowait_time_us() in kernel/time/tick-sched.c).
    They fall far if the hwthread was offline. ticks: clock ticks per second. judged: times whose
    fall matters.
    """
    pairs = zip(old[judged], new[judged], strict=True)
    if any(before - after > _RETREAT * ticks for before, after in pairs):
        return None
    return list(map(max, old, new))


class _Scaled(Protocol):
    @property
    def scale(self) -> float: ...


class Rates(Generic[P]):
    """Computes rates from the counters of the current and the previous reading. P: their part."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, P], int] = {}
        self._moment: float | None = None

    def of(
        self,
        counts: Iterable[tuple[str, int, P, int]],
        metrics: Mapping[str, _Scaled],
        moment: float,
    ) -> list[tuple[str, float, P]]:
        """Return metric, rate and part of each counter of the previous reading.

        counts: metric, value, part, and `wraps_at` as in `compute_delta`; the first interval of a
        NEW counter counts. metrics: `scale` is the factor of the rate. moment: seconds of a
        monotonic clock.
        """
        before, self._before = self._before, {}
        seconds = 0.0 if self._moment is None else moment - self._moment
        self._moment = moment
        rates: list[tuple[str, float, P]] = []
        for metric, value, part, wraps_at in counts:
            key = (metric, part)
            if len(self._before) < _MOST:
                self._before[key] = value
            if seconds <= 0:
                continue
            old = before.get(key, 0 if wraps_at == NEW else None)
            if old is not None:
                delta = value - old if value >= old else compute_delta(old, value, wraps_at)
                rates.append((metric, delta * metrics[metric].scale / seconds, part))
        return rates


class Sums:
    """Sums of the counters of parts. Sums never fall when parts appear, disappear or reset.

    columns: number of counters of a part. wraps_at: as in `compute_delta`. total, parts: deltas
    since the first reading.
    """

    def __init__(self, columns: int, wraps_at: int = 0) -> None:
        self.total = [0] * columns
        self.parts: dict[str, list[int]] = {}
        self._wraps_at = wraps_at
        self._before: Mapping[str, Sequence[int]] = {}

    def add(self, counters: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """Add the counters of all present parts. Return the deltas of known parts.

        The first value of a part is not added: it covers the time before this reading.
        """
        deltas: dict[str, list[int]] = {}
        parts: dict[str, list[int]] = {}
        for part, new in counters.items():
            old = self._before.get(part)
            if old is None:
                parts[part] = [0] * len(self.total)
                continue
            delta = deltas[part] = compute_deltas(old, new, self._wraps_at)
            parts[part] = list(map(add, self.parts[part], delta))
            self.total = list(map(add, self.total, delta))
        self._before, self.parts = counters, parts
        return deltas
