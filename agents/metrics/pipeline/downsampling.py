"""Values of one time step: what comes more often than a store keeps is made one value."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.agents.metrics.readers.base import Place

_MOST = 200_000


class Steps:
    """Collects values and gives, for each step that is over, their mean and its end.

    seconds: of a step; 0 gives each value as it comes.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._slot: int | None = None
        self._values: dict[tuple[str, Place], tuple[float, int]] = {}

    def add(
        self, now: float, values: Iterable[tuple[str, float, Place]]
    ) -> Iterator[tuple[float, list[tuple[str, float, Place]]]]:
        """Take the values of `now` (seconds since 1970); give time and values of a step, if any."""
        if not self._seconds:
            yield now, list(values)
            return
        slot = int(now // self._seconds)
        if self._slot is not None and slot != self._slot and self._values:
            end = (self._slot + 1) * self._seconds
            yield (
                end,
                [
                    (metric, total / number, place)
                    for (metric, place), (total, number) in self._values.items()
                ],
            )
            self._values = {}
        self._slot = slot
        for metric, value, place in values:
            key = (metric, place)
            total, number = self._values.get(key, (0.0, 0))
            if number or len(self._values) < _MOST:
                self._values[key] = (total + value, number + 1)
