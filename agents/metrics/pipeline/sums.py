"""Sums of counters over parts that come and go, wrap and begin anew: they never fall."""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Sums:
    """Adds counters of parts up to ones that never fall, whichever parts come, go or begin anew.

    columns: how many counters a part has. wraps_at: the largest value of a counter that is
    followed by 0; 0 if they are wide enough.
    total, parts: growth since the first time that something was added.
    """

    def __init__(self, columns: int, wraps_at: int = 0) -> None:
        self.total = [0] * columns
        self.parts: dict[str, list[int]] = {}
        self._wraps_at = wraps_at
        self._before: Mapping[str, Sequence[int]] = {}

    def add(self, counters: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """Take the counters of the parts that there are; give the growth of those known before.

        What a part counted before it was first seen belongs to another time: it isn't added.
        """
        growths: dict[str, list[int]] = {}
        parts: dict[str, list[int]] = {}
        for part, new in counters.items():
            old = self._before.get(part)
            if old is None:
                parts[part] = [0] * len(self.total)
                continue
            growth = growths[part] = grown(old, new, self._wraps_at)
            parts[part] = list(map(add, self.parts[part], growth))
            self.total = list(map(add, self.total, growth))
        self._before, self.parts = counters, parts
        return growths


def grown(old: Sequence[int], new: Sequence[int], wraps_at: int = 0) -> list[int]:
    """Give by how much the counters of one part have grown, none below 0.

    A single one that fell has wrapped, if less than half of its range took it over its end: a part
    that begins anew resets several. Another that fell by half or more has begun anew. Else it
    faltered, as sums over CPUs do: it hasn't grown.
    """
    growth = [after - before for before, after in zip(old, new, strict=True)]
    if min(growth, default=0) >= 0:
        return growth
    is_single = sum(each < 0 for each in growth) == 1
    for column, (before, after) in enumerate(zip(old, new, strict=True)):
        if after >= before:
            continue
        wrapped = after - before + wraps_at + 1
        if is_single and before <= wraps_at and wrapped <= wraps_at // 2:
            growth[column] = wrapped
        else:
            growth[column] = after if after <= before // 2 else 0
    return growth
