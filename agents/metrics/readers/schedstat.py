"""Reader of run and wait times of tasks by hwthread."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.metrics.readers.base import Count, Metric, Reader, ReaderSettings, Scope
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.schedstat import parse_schedstat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node

_STATISTICS = "proc/schedstat"
_NANOSECONDS = 1e-9


class SchedstatReader(Reader[ReaderSettings]):
    """Run and wait times of each hwthread; read only if a metric is wanted.

    The kernel adds the time of a task when the task leaves the hwthread. A long run counts late,
    and a rate may exceed 100 %.
    """

    name = "schedstat"
    metrics: ClassVar[dict[str, Metric]] = {
        "cpu_load_core": Metric(
            unit="",
            type="hwthread",
            description="running and waiting tasks of the hwthread, mean since the previous sample",
            source="/proc/schedstat, cpuN: fields 7 + 8",
            scale=_NANOSECONDS,
            is_default=False,
        ),
        "sched_run": Metric(
            unit="%",
            type="hwthread",
            description="time in which a task ran",
            source="/proc/schedstat, cpuN: field 7",
            aggregation="mean",
            scale=_NANOSECONDS * 100,
            is_default=False,
        ),
        "sched_wait": Metric(
            unit="%",
            type="hwthread",
            description="waiting time for the hwthread, summed over tasks; may exceed 100",
            source="/proc/schedstat, cpuN: field 8",
            aggregation="mean",
            scale=_NANOSECONDS * 100,
            is_default=False,
        ),
        "sched_timeslices": Metric(
            unit="1/s",
            type="hwthread",
            description="timeslices started on the hwthread",
            source="/proc/schedstat, cpuN: field 9",
            is_default=False,
        ),
    }

    def read(self, node: Node) -> Iterable[Count]:
        """Read /proc/schedstat. Raise NotHereError without CONFIG_SCHEDSTATS."""
        self.errors = []
        if self.wanted is not None and self.wanted.isdisjoint(self.metrics):
            return []
        found: list[Count] = []
        for number, times in read_parsed(node, _STATISTICS, parse_schedstat).items():
            scope = Scope("hwthread", str(number))
            found.append(Count("cpu_load_core", times.ran + times.waited, scope))
            found.append(Count("sched_run", times.ran, scope))
            found.append(Count("sched_wait", times.waited, scope))
            found.append(Count("sched_timeslices", times.timeslices, scope))
        return found
