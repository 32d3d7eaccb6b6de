"""Downsampling: the mean of all values within one step of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.metrics.pipeline.outputs import Value
    from ccagent.agents.metrics.readers.base import Scope

_MOST = 200_000


class Downsampler:
    """Collects values and yields their means at the end of each step of the store.

    seconds: length of a step; 0 passes every value through.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._slot: int | None = None
        self._values: dict[tuple[str, Scope], tuple[float, int]] = {}

    def add(self, now: float, values: list[Value]) -> Iterator[tuple[float, list[Value]]]:
        """Add the values of `now` (seconds since 1970).

        Yield the end and the means of a finished step.
        """
        if not self._seconds:
            yield now, values
            return
        slot = int(now // self._seconds)
        if self._slot is not None and slot != self._slot and self._values:
            means = [
                (metric, total / number, scope)
                for (metric, scope), (total, number) in self._values.items()
            ]
            yield (self._slot + 1) * self._seconds, means
            self._values = {}
        self._slot = slot
        for metric, value, scope in values:
            key = (metric, scope)
            total, number = self._values.get(key, (0.0, 0))
            if number or len(self._values) < _MOST:
                self._values[key] = (total + value, number + 1)
