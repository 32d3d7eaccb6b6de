"""The sample as points of line protocol: the node, and each Slurm job on it.

Process groups have no points: each would begin a time series of its own in the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.sonar.process import FIRST_PID_OF_ENDED
from ccagent.points import Point

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.envelopes import SampleAttributes, SampleProcess

_GB = 1024 / 1e9
"""A KB of the envelope, in GB."""


def points(
    sample: SampleAttributes,
    time: float,
    of_cgroups: dict[int, dict[str, float]],
    pss: dict[int, int],
) -> Iterator[Point]:
    """Give the points of a sample: memory in GB, utilisation in percent of one core, time in s.

    of_cgroups: by job, metrics that its control group knows better than its processes. pss: KB by
    job, where it was asked for.
    """
    tags = {"cluster": sample.cluster, "hostname": sample.node, "type": "node"}
    system = sample.system
    yield Point("cpu_load", tags, system.load1, time)
    yield Point("mem_used", tags, system.used_memory * _GB, time)
    yield Point("proc_run", tags, system.runnable_entities, time)
    yield Point("proc_total", tags, system.existing_entities, time)
    of_processes: dict[int, list[SampleProcess]] = {job: [] for job in of_cgroups}
    for job in sample.jobs:
        if not job.epoch:
            of_processes.setdefault(job.job, []).extend(job.processes)
    for number, processes in of_processes.items():
        own = tags | {"stype": "job", "stype-id": str(number)}
        for metric, value in (_sums(processes) | of_cgroups.get(number, {})).items():
            yield Point(metric, own, value, time)
        if number in pss:
            yield Point("job_mem_pss", own, pss[number] * _GB, time)


def _sums(processes: list[SampleProcess]) -> dict[str, float]:
    """Add up what the processes of a job that are alive tell."""
    return {
        "job_mem_rss": sum(process.resident_memory for process in processes) * _GB,
        "job_cpu_util": round(sum(process.cpu_util for process in processes), 3),
        "job_cpu_time": sum(process.cpu_time for process in processes),
        "job_processes": sum(
            1 + process.rolledup for process in processes if process.pid < FIRST_PID_OF_ENDED
        ),
        "job_data_read": sum(process.data_read for process in processes),
        "job_data_written": sum(process.data_written for process in processes),
    }
