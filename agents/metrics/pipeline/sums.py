"""Sums of counters over parts that appear, disappear, wrap and reset. Sums never fall."""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Sums:
    """Sums of the counters of parts. Sums never fall when parts appear, disappear or reset.

    columns: number of counters of a part. wraps_at: largest value before a counter wraps to 0; 0 if
    it never wraps. total, parts: deltas since the first reading.
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


def compute_deltas(old: Sequence[int], new: Sequence[int], wraps_at: int = 0) -> list[int]:
    """Return the non-negative deltas of the counters of one part.

    A single counter that fell has wrapped if the wrapped delta is less than half of its range: a
    reset of the part sets several counters back. Any other counter that fell by half or more was
    reset. A smaller fall is an inaccurate sum over CPUs and counts as 0.
    """
    deltas = [after - before for before, after in zip(old, new, strict=True)]
    if min(deltas, default=0) >= 0:
        return deltas
    is_single = sum(each < 0 for each in deltas) == 1
    for column, (before, after) in enumerate(zip(old, new, strict=True)):
        if after >= before:
            continue
        wrapped = after - before + wraps_at + 1
        if is_single and before <= wraps_at and wrapped <= wraps_at // 2:
            deltas[column] = wrapped
        else:
            deltas[column] = after if after <= before // 2 else 0
    return deltas
