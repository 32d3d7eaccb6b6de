"""The sample as points of line protocol: the node, and each Slurm job on it.

Process groups have no points: each would begin a time series of its own in the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.points import Point

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.envelopes import SampleAttributes, SampleJob

_KB_PER_GB = 1 << 20


def points(sample: SampleAttributes, time: float) -> Iterator[Point]:
    """Give the points of a sample: memory in GB, utilisation in percent of one core, time in s."""
    tags = {"cluster": sample.cluster, "hostname": sample.node, "type": "node"}
    system = sample.system
    yield Point("cpu_load", tags, system.load1, time)
    yield Point("mem_used", tags, system.used_memory / _KB_PER_GB, time)
    yield Point("proc_run", tags, system.runnable_entities, time)
    yield Point("proc_total", tags, system.existing_entities, time)
    jobs: dict[int, list[SampleJob]] = {}
    for job in sample.jobs:
        if not job.epoch:
            jobs.setdefault(job.job, []).append(job)
    for number, parts in jobs.items():
        processes = [process for job in parts for process in job.processes]
        own = tags | {"stype": "job", "stype-id": str(number)}
        memory = sum(process.resident_memory for process in processes)
        yield Point("job_mem_used", own, memory / _KB_PER_GB, time)
        yield Point("job_cpu_util", own, round(sum(p.cpu_util for p in processes), 3), time)
        yield Point("job_cpu_time", own, sum(p.cpu_time for p in processes), time)
        yield Point("job_processes", own, sum(1 + p.rolledup for p in processes), time)
        yield Point("job_data_read", own, sum(p.data_read for p in processes), time)
        yield Point("job_data_written", own, sum(p.data_written for p in processes), time)
