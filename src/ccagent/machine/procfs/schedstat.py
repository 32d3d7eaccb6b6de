"""Parser for /proc/schedstat: run and wait times of tasks by hwthread."""

from __future__ import annotations

import re
from typing import NamedTuple

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT

_OLDEST = 15
"""First supported version of the format: earlier versions have twelve numbers per cpu."""
_VERSION = re.compile(rb"version ([0-9]{1,6})\n")
# The leading literal skips the lines of domains, most of the file, at search speed.
_CPU = re.compile(
    rb"\ncpu([0-9]{1,6})(?: [0-9]{1,20}){6} ([0-9]{1,20}) ([0-9]{1,20}) ([0-9]{1,20})(?=\n)"
)


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
