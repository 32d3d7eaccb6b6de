"""Plan of the events of a hardware thread and the metrics computed from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.metrics.perf.call import CYCLES, INSTRUCTIONS, explain_error
from ccagent.agents.metrics.perf.pmu import Pmu, find_pmus
from ccagent.errors import CcagentError, NotHereError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.agents.metrics.perf.call import PerfEvent
    from ccagent.agents.metrics.perf.tables import EventTable
    from ccagent.machine.node import Node

FLOPS = ("flops_sp", "flops_dp", "flops_any")

_CYCLES, _INSTRUCTIONS = 0, 1


class UnavailableMetrics:
    """Unavailable metrics. absent: reason by metric. errors: messages to log."""

    def __init__(self) -> None:
        self.absent: dict[str, str] = {}
        self.errors: list[str] = []

    def note(self, error: CcagentError, *metrics: str) -> None:
        """Note why metrics are unavailable. Missing hardware is not logged."""
        for metric in metrics:
            self.absent[metric] = str(error)
        if not isinstance(error, NotHereError):
            self.errors.append(f"{', '.join(metrics)}: {error}")


class _Clock(NamedTuple):
    """Events of the clock rate: `awake` / `reference` * rate of `time`.

    awake: cycles while awake. reference: ticks of a fixed rate while awake. time: ticks of that
    rate, awake or not. If time is None, `rate` is the rate in Hz.
    """

    awake: int
    reference: int
    time: int | None = None
    rate: float = 0.0


class EventPlan:
    """Events to count on each hardware thread.

    together: number of first events that belong in one group. A plan without a table has the
    kernel's generic events.
    """

    def __init__(
        self, node: Node, table: EventTable | None, unavailable: UnavailableMetrics
    ) -> None:
        self.events: list[PerfEvent] = [CYCLES, INSTRUCTIONS]
        self._clock = self._plan_clock(node, table, unavailable)
        self.together = len(self.events)
        self._flops = {} if table is None else self._plan_flops(node, table, unavailable)

    @property
    def needs_rate(self) -> bool:
        """Return whether the plan needs the rate of the system's time counter."""
        return self._clock is not None and self._clock.time is None

    def set_rate(self, rate: float, unavailable: UnavailableMetrics) -> None:
        """Set the rate of the system's time counter in Hz, 0 if unknown."""
        if self._clock is not None and rate:
            self._clock = self._clock._replace(rate=rate)
        else:
            self._clock = None
            unavailable.note(
                NotHereError("perf: the kernel has no rate of its time counter"),
                "clock",
            )

    def refuse(self, refused: dict[int, OSError], unavailable: UnavailableMetrics) -> None:
        """Drop the metrics of events that the kernel refuses."""
        for number, error in refused.items():
            reason = explain_error(error, "")
            if number in {_CYCLES, _INSTRUCTIONS}:
                unavailable.note(reason, "ipc")
            if self._clock is not None and number in self._clock[:3]:
                unavailable.note(reason, "clock")
                self._clock = None
            for metric in [
                name for name, weights in self._flops.items() if number in dict(weights)
            ]:
                unavailable.note(reason, *dict.fromkeys((metric, "flops_any")))
                del self._flops[metric]

    def derive(self, rates: Sequence[float | None]) -> Iterator[tuple[str, float]]:
        """Yield metrics computed from the rates of the events."""
        cycles, instructions = rates[_CYCLES], rates[_INSTRUCTIONS]
        if cycles and instructions is not None:
            yield "ipc", instructions / cycles
        clock = self._clock
        if clock is not None:
            awake, reference = rates[clock.awake], rates[clock.reference]
            rate = clock.rate if clock.time is None else rates[clock.time]
            if awake and reference and rate:
                yield "clock", rate * awake / reference
        flops: dict[str, float] = {}
        for metric, weights in self._flops.items():
            value = total(rates, weights)
            if value is not None:
                flops[metric] = value
        if "flops_sp" in flops and "flops_dp" in flops:
            flops["flops_any"] = 2 * flops["flops_dp"] + flops["flops_sp"]
        yield from flops.items()

    def _plan_clock(
        self, node: Node, table: EventTable | None, unavailable: UnavailableMetrics
    ) -> _Clock | None:
        first = len(self.events)
        try:
            if table is not None and table.reference:
                self.events.append(find_pmus(node, table.pmus)[0].event(table.reference))
                return _Clock(_CYCLES, first)
            pmu = Pmu(node, "msr")
            self.events += [pmu.find_event(name) for name in ("aperf", "mperf", "tsc")]
            return _Clock(first, first + 1, first + 2)
        except CcagentError as error:
            unavailable.note(error, "clock")
            return None

    def _plan_flops(
        self, node: Node, table: EventTable, unavailable: UnavailableMetrics
    ) -> dict[str, list[tuple[int, float]]]:
        """Add the events of floating-point operations. Return their weights by metric."""
        planned: dict[str, list[tuple[int, float]]] = {}
        try:
            if table.events:
                pmu = find_pmus(node, table.pmus)[0]
                found = [pmu.event(each.event) for each in table.events]
                for number, each in enumerate(table.events, len(self.events)):
                    for metric in FLOPS:
                        if weight := getattr(each, metric):
                            planned.setdefault(metric, []).append((number, weight))
                self.events += found
        except CcagentError as error:
            unavailable.note(error, *FLOPS)
            return {}
        for metric in FLOPS:
            if metric not in planned and not (metric == "flops_any" and planned):
                unavailable.note(NotHereError(f"perf: {table.name}: no event counts it"), metric)
        return planned


def total(rates: Sequence[float | None], weights: list[tuple[int, float]]) -> float | None:
    """Return the sum of weighted rates; None if a rate is unknown, since a partial sum misleads."""
    result = 0.0
    for number, weight in weights:
        rate = rates[number]
        if rate is None:
            return None
        result += rate * weight
    return result
