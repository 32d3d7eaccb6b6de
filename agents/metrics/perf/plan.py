"""Plan of the events of a hardware thread, and tables of the events of processor models.

The kernel has events for cycles and instructions of every processor. Events of floating-point
operations and memory traffic differ by model. Each table names its sources.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.agents.metrics.perf.call import (
    CYCLES,
    INSTRUCTIONS,
    PerfEvent,
    Pmu,
    explain_error,
    find_pmus,
)
from ccagent.errors import CcagentError, ConfigurationError, NotHereError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.machine.cpus import CpuIdentity
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
                NotHereError("perf: the kernel has no rate of its time counter"), "clock"
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


_DIRECTORY = os.path.join(os.path.dirname(__file__), "events")
_ENDING = ".toml"


class CpuModels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processors of a table. models: inclusive ranges."""

    vendor: str
    family: int
    models: list[tuple[int, int]]

    def has(self, cpu: CpuIdentity) -> bool:
        """Return whether a processor is in this set."""
        return (self.vendor, self.family) == cpu[:2] and any(
            first <= cpu.model <= last for first, last in self.models
        )


class CoreEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Core event, and the floating-point operations per count.

    event: perf's notation. flops_any: operations of an event that does not distinguish precision.
    """

    name: str
    event: str
    flops_sp: float = 0.0
    flops_dp: float = 0.0
    flops_any: float = 0.0


class MemoryEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory event, and the bytes per count.

    channels: number of channels. step: distance between their event codes.
    """

    name: str
    event: str
    bytes: float
    channels: int = 1
    step: int = 0

    def events(self) -> list[str]:
        """Return the event of each channel in perf's notation, starting with `event=`."""
        name, _, rest = self.event.partition(",")
        if self.channels == 1:
            return [self.event]
        first = int(name.removeprefix("event="), 16)
        return [f"event={first + i * self.step:#x},{rest}" for i in range(self.channels)]


class MemoryTraffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events that together count memory traffic.

    pmus: name pattern of the PMUs. group: largest number of events in a group.
    """

    pmus: str
    group: int
    events: list[MemoryEvent]


class EventTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events of some models of processors.

    sources: documents of the events. cpus: processor models. pmus: name pattern of the core PMU.
    reference: event that counts at the rate of the system's time counter while a core is awake;
    empty if none exists. memory: alternatives; the first available one is used.
    """

    name: str
    sources: list[str]
    cpus: list[CpuModels]
    pmus: str
    reference: str = ""
    events: list[CoreEvent] = []
    memory: list[MemoryTraffic] = []


def table_names() -> list[str]:
    """Return the names of all tables, sorted."""
    return sorted(
        name.removesuffix(_ENDING) for name in os.listdir(_DIRECTORY) if name.endswith(_ENDING)
    )


def read_table(name: str) -> EventTable:
    """Read a table of the package. Raise ConfigurationError if it is invalid."""
    with open(os.path.join(_DIRECTORY, name + _ENDING), "rb") as file:
        content = file.read()
    try:
        return msgspec.toml.decode(content, type=EventTable)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{name}{_ENDING}: {error}") from error


def choose(cpu: CpuIdentity | None) -> EventTable | None:
    """Return the table of a processor; None without one."""
    if cpu is None:
        return None
    tables = (read_table(name) for name in table_names())
    return next((table for table in tables if any(kind.has(cpu) for kind in table.cpus)), None)
