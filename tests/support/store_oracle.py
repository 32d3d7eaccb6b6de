"""A slow metric store: a dictionary of lists, written from the specification alone."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

Path = tuple[str, ...]


class OracleMetric(NamedTuple):
    frequency: int
    aggregation: str | None


class Chain:
    """The values of a metric at a level, in slots of one time step."""

    def __init__(self, time: int, frequency: int) -> None:
        self.frequency = frequency
        self.start = time - frequency // 2
        self.slots: dict[int, float] = {}

    def write(self, time: int, value: float) -> None:
        self.slots[(time - self.start) // self.frequency] = value

    def read(self, start: int, end: int) -> tuple[list[float], int, int]:
        """Values of [start, end), moved to the first written one, and cut after the last."""
        first, last = min(self.slots), max(self.slots)
        time = max(start, self.start + self.frequency // 2 + first * self.frequency)
        begin = time
        values: list[float] = []
        while time < end and (time - self.start) // self.frequency <= last:
            values.append(self.slots.get((time - self.start) // self.frequency, math.nan))
            time += self.frequency
        return values, begin, time


class Oracle:
    def __init__(self, metrics: dict[str, OracleMetric]) -> None:
        self.metrics = metrics
        self.chains: dict[tuple[Path, str], Chain] = {}

    def write(self, path: Path, metric: str, time: int, value: float) -> None:
        key = (path, metric)
        if key not in self.chains:
            self.chains[key] = Chain(time, self.metrics[metric].frequency)
        self.chains[key].write(time, value)

    def find(self, path: Path, metric: str) -> list[Chain]:
        """The level's own chain hides those below."""
        if (path, metric) in self.chains:
            return [self.chains[path, metric]]
        below = {
            p[: len(path) + 1] for p, m in self.chains if p[: len(path)] == path and m == metric
        }
        return [chain for one in sorted(below - {path}) for chain in self.find(one, metric)]

    def query(self, paths: list[Path], metric: str, start: int, end: int) -> dict[str, Any] | None:
        """One result; paths are the levels that are aggregated."""
        known = self.metrics.get(metric)
        if known is None or start > end:
            return {"error": True}
        found = [chain.read(start, end) for path in paths for chain in self.find(path, metric)]
        if not found:
            return None
        values, begin, stop = found[0]
        for more, other_begin, other_stop in found[1:]:
            if (begin, stop) != (other_begin, other_stop):
                cut = len(more) - int((stop - other_stop) / known.frequency)
                if begin != other_begin or cut < 1 or cut > len(more) or cut != len(values):
                    return {"error": True}
            values = [a + b for a, b in zip(values, more, strict=False)]
        if len(found) > 1:
            if known.aggregation is None:
                return {"error": True}
            if known.aggregation == "avg":
                values = [value / len(found) for value in values]
        present = [value for value in values if not math.isnan(value)]
        lead = begin // known.frequency - start // known.frequency
        data = [math.nan] * max(0, lead) + values
        return {
            "data": data,
            "from": begin,
            "to": stop,
            "avg": sum(present) / len(present) if present else math.nan,
            "min": min(present, default=math.nan),
            "max": max(present, default=math.nan),
        }


def same(expected: dict[str, Any] | None, found: list[dict[str, Any]]) -> bool:
    """Return whether an answer is what the oracle says: data to 3 decimals, statistics to 2."""
    if expected is None:
        return found == []
    (one,) = found
    if "error" in expected:
        return "error" in one
    data = one.get("data", [])
    return (
        (one["from"], one["to"]) == (expected["from"], expected["to"])
        and len(data) == len(expected["data"])
        and all(_near(a, b, 0.0006) for a, b in zip(expected["data"], data, strict=True))
        and all(_near(expected[name], one[name], 0.006) for name in ("avg", "min", "max"))
    )


def _near(expected: float, found: float | None, difference: float) -> bool:
    if found is None:
        return math.isnan(expected)
    return abs(expected - found) <= difference
