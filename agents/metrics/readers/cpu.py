"""Load, and what the hwthreads spend their time on."""

from __future__ import annotations

from itertools import repeat
from operator import sub
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from msgspec import Meta

from ccagent.agents.metrics.readers.base import (
    NODE,
    Count,
    Gauge,
    Metric,
    Place,
    Reader,
    ReaderSettings,
)
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.system_state import parse_loadavg
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node
    from ccagent.machine.system_state import Load

_LARGEST_CPU = 65_535
_RETREAT = 3
"""Seconds that a counter may go back by before it counts as begun anew."""

_STATES = {
    "user": "in user mode, that of guests included",
    "nice": "in user mode at low priority, that of guests included",
    "system": "in the kernel",
    "idle": "idle",
    "iowait": "idle while a task of it waits for a disk",
    "irq": "in interrupts",
    "softirq": "in soft interrupts",
    "steal": "taken by the hypervisor",
}
"""The times of a cpu in /proc/stat, in their order.

guest and guest_nice come after them, but user and nice hold those already.
"""

_SHARES = tuple(f"cpu_{state}" for state in _STATES)
_EVENTS = {b"ctxt": "context_switches", b"intr": "interrupts", b"processes": "forks"}


class CpuCounters(NamedTuple):
    """times: by online cpu, clock ticks in each of the eight states. events: since boot."""

    times: dict[int, list[int]]
    events: dict[str, int]


def parse_counters(content: bytes) -> CpuCounters:
    """Parse /proc/stat: the lines `cpuN`, `intr`, `ctxt` and `processes`. Raises UnparsableError.

    Without a cpu it is none. The line `cpu` is left out: it holds cpus that went offline.
    """
    times: dict[int, list[int]] = {}
    events: dict[str, int] = {}
    try:
        for line in content.split(b"\n"):
            if line.startswith(b"cpu"):
                if line[3:4].isdigit():
                    fields = line.split()
                    number = int(fields[0][3:])
                    ticks = list(map(int, fields[1:9]))
                    if number > _LARGEST_CPU or len(ticks) < len(_SHARES):
                        raise UnparsableError(f"not a cpu with eight times: {line[:80]!r}")
                    if min(ticks) < 0 or max(ticks) > LARGEST_UINT:
                        raise UnparsableError(f"a time is out of range: {line[:80]!r}")
                    times[number] = ticks
                continue
            # `intr` goes on with a number for each interrupt there may be.
            name, *rest = line.split(None, 2)[:2] or (b"",)
            event = _EVENTS.get(name)
            if event is not None:
                events[event] = int(rest[0])
                if not 0 <= events[event] <= LARGEST_UINT:
                    raise UnparsableError(f"out of range: {line[:80]!r}")
    except (ValueError, IndexError) as error:
        raise UnparsableError(str(error)) from None
    if not times:
        raise UnparsableError("no line of a cpu")
    return CpuCounters(times, events)


def shares(growth: list[int]) -> list[float]:
    """Give percent of growths that are not negative, of which one at least isn't 0."""
    total = sum(growth)
    return [100 * each / total for each in growth]


class CpuSettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.cpu]."""

    types: Annotated[
        tuple[Literal["node", "hwthread"], ...],
        Meta(description="what shares of time are told of: the whole, each hwthread"),
    ] = ("node", "hwthread")
    of_node: Annotated[
        Literal["mean", "sum"],
        Meta(description="what the node's share is of its hwthreads': sum as cc-metric-collector"),
    ] = "mean"


class CpuReader(Reader[CpuSettings]):
    """Load; shares of time of each hwthread and their mean; context switches, interrupts, forks.

    Shares are those since the reading before, so the first one has none; nor has a hwthread that
    was offline at one of both.
    """

    name = "cpu"
    Settings = CpuSettings
    metrics: ClassVar[dict[str, Metric]] = {
        "cpu_load": Metric(
            unit="",
            type="node",
            description="tasks that run, want to, or wait for a disk; mean of a minute",
            source="/proc/loadavg, first field",
            aggregation="mean",
        ),
        "cpu_load5": Metric(
            unit="",
            type="node",
            description="like cpu_load, of five minutes",
            source="/proc/loadavg, second field",
            aggregation="mean",
            is_default=False,
        ),
        "cpu_load15": Metric(
            unit="",
            type="node",
            description="like cpu_load, of fifteen minutes",
            source="/proc/loadavg, third field",
            aggregation="mean",
            is_default=False,
        ),
        "proc_run": Metric(
            unit="",
            type="node",
            description="threads that run or want to, the agent's own included",
            source="/proc/loadavg, fourth field before the slash",
            is_default=False,
        ),
        "proc_total": Metric(
            unit="",
            type="node",
            description="threads that exist",
            source="/proc/loadavg, fourth field behind the slash",
            is_default=False,
        ),
        **{
            f"cpu_{state}": Metric(
                unit="%",
                type="hwthread",
                description=f"share of time {description}",
                source=f"/proc/stat, cpuN: {state}",
                aggregation="mean",
            )
            for state, description in _STATES.items()
        },
        "context_switches": Metric(
            unit="1/s",
            type="node",
            description="context switches of all cpus",
            source="/proc/stat, ctxt",
            is_default=False,
        ),
        "interrupts": Metric(
            unit="1/s",
            type="node",
            description="interrupts of all cpus",
            source="/proc/stat, intr: first number",
            is_default=False,
        ),
        "forks": Metric(
            unit="1/s",
            type="node",
            description="processes and threads created",
            source="/proc/stat, processes",
            is_default=False,
        ),
    }

    def __init__(self, settings: CpuSettings | None = None) -> None:
        super().__init__(settings)
        self._of_node = "node" in self.settings.types
        self._of_hwthreads = "hwthread" in self.settings.types
        self._before: dict[int, list[int]] = {}
        self._places: dict[int, Place] = {}

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of /proc."""
        from ccagent.machine.procfs.checks import require_proc

        yield require_proc(node)

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read /proc/loadavg and /proc/stat; NotHereError if there is neither."""
        self.errors = []
        found: list[Gauge | Count] = []
        try:
            found += _loads(read_parsed(node, "proc/loadavg", parse_loadavg))
        except NotHereError:
            pass  # /proc/stat may be there.
        except CcagentError as error:
            self.errors.append(str(error))
        try:
            counters = read_parsed(node, "proc/stat", parse_counters)
        except NotHereError:
            if not found and not self.errors:
                raise
        except CcagentError as error:
            self.errors.append(str(error))
        else:
            found += map(Count, counters.events, counters.events.values())
            found += self._times(counters.times, _RETREAT * node.clock_ticks)
        return found

    def _times(self, times: dict[int, list[int]], retreat: int) -> list[Gauge]:
        before, self._before = self._before, times
        found: list[Gauge] = []
        rows: list[list[float]] = []
        for cpu, ticks in times.items():
            old = before.get(cpu)
            if old is None:
                continue
            growth = list(map(sub, ticks, old))
            least = min(growth)
            if least < 0:
                # idle and iowait go back a little now and then (get_cpu_iowait_time_us() in
                # kernel/time/tick-sched.c), and far when the cpu was offline meanwhile.
                if least < -retreat:
                    continue
                times[cpu] = list(map(max, ticks, old))
                growth = [max(0, each) for each in growth]
            if any(growth):
                row = shares(growth)
                rows.append(row)
                if self._of_hwthreads:
                    found += map(Gauge, _SHARES, row, repeat(self._place(cpu)))
        if self._of_node and rows:
            divisor = 1 if self.settings.of_node == "sum" else len(rows)
            means = [sum(column) / divisor for column in zip(*rows, strict=True)]
            found += map(Gauge, _SHARES, means, repeat(NODE))
        return found

    def _place(self, cpu: int) -> Place:
        place = self._places.get(cpu)
        if place is None:
            place = self._places[cpu] = Place("hwthread", str(cpu))
        return place


def _loads(load: Load) -> list[Gauge]:
    return [
        Gauge("cpu_load", load.load1),
        Gauge("cpu_load5", load.load5),
        Gauge("cpu_load15", load.load15),
        Gauge("proc_run", load.runnable),
        Gauge("proc_total", load.existing),
    ]
