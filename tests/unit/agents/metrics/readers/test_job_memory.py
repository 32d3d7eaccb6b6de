"""What the daemon remembers of running jobs."""

from __future__ import annotations

from ccagent.agents.metrics.readers.cgroup_jobs import JobMemory
from ccagent.machine.cgroup.counters import JobCounters


def test_peaks_and_samples_of_the_jobs_that_run() -> None:
    memory = JobMemory()
    for time, size in ((10.0, 5), (20.0, 9), (30.0, 7)):
        memory.note({7: JobCounters(mem_rss=size), 8: JobCounters()}, time)
    assert memory.describe() == {
        "7": {"since": 10.0, "last": 30.0, "samples": 3, "memory_peak": 9},
        "8": {"since": 10.0, "last": 30.0, "samples": 3, "memory_peak": None},
    }


def test_ended_jobs_are_forgotten() -> None:
    memory = JobMemory()
    memory.note({7: JobCounters(mem_rss=5)}, 10.0)
    memory.note({}, 20.0)
    assert memory.describe() == {}
    memory.note({7: JobCounters(mem_rss=1)}, 30.0)
    assert memory.describe()["7"]["memory_peak"] == 1
