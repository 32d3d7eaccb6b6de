"""Reader of run and wait times of tasks by hwthread."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.metrics.readers.base import Count, Metric, Reader, ReaderSettings, Scope
from ccagent.errors import UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node

_STATISTICS = "proc/schedstat"
_OLDEST = 15
"""First supported version of the format: earlier versions have twelve numbers per cpu."""
_VERSION = re.compile(rb"version ([0-9]{1,6})\n")
# The leading literal skips the lines of domains, most of the file, at search speed.
_CPU = re.compile(
    rb"\ncpu([0-9]{1,6})(?: [0-9]{1,20}){6} ([0-9]{1,20}) ([0-9]{1,20}) ([0-9]{1,20})(?=\n)"
)
_NANOSECONDS = 1e-9


class SchedulerTimes(NamedTuple):
    """ran, waited: nanoseconds of all tasks since boot. timeslices: number of runs."""

    ran: int
    waited: int
    timeslices: int


def parse_schedstat(content: bytes) -> dict[int, SchedulerTimes]:
    """Return fields 7, 8 and 9 of /proc/schedstat by hwthread. Raise UnparsableError.

    Source: Documentation/scheduler/sched-stats.rst of Linux. Some versions of the document name
    jiffies; rq_cpu_time and run_delay are in nanoseconds (kernel/sched/stats.h).
    """
    version = _VERSION.match(content)
    if version is None or int(version[1]) < _OLDEST:
        raise UnparsableError(f"not statistics since version {_OLDEST}: {content[:80]!r}")
    found = {
        int(number): SchedulerTimes(int(ran), int(waited), int(timeslices))
        for number, ran, waited, timeslices in _CPU.findall(content)
    }
    if not found or max(map(max, found.values())) > LARGEST_UINT:
        raise UnparsableError("no hwthread with nine counters")
    return found


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
