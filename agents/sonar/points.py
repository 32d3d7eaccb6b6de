"""The sample as points of line protocol: each Slurm job and its GPUs, and optionally the node.

Process groups have no points: each would start a new time series in the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.metrics.presets import apply_preset
from ccagent.agents.metrics.readers.base import Count, Scope
from ccagent.agents.metrics.readers.cgroup_jobs import CgroupJobsReader, make_job_values
from ccagent.agents.sonar.jobs.records import ALLOCATED
from ccagent.agents.sonar.process import FIRST_PID_OF_ENDED
from ccagent.machine.counters import Rates
from ccagent.machine.gpu.vendor import PER_PERCENT
from ccagent.records.points import Point

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.agents.sonar.jobs.allocations import Allocation
    from ccagent.machine.cgroup.counters import JobCounters
    from ccagent.machine.gpu.gpus import GpuReading
    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SampleAttributes, SampleProcess

_GB = 1024 / 1e9
"""GB per KB of the envelope."""

_METRICS = CgroupJobsReader.of_jobs
_OUTPUTS = {
    name: apply_preset("clustercockpit", name, metric.unit) for name, metric in _METRICS.items()
}


class CgroupMetrics:
    """Metrics of jobs by the counters of their control groups."""

    def __init__(self) -> None:
        self._rates: Rates[Scope] = Rates()

    def read(self, node: Node, jobs: dict[int, JobCounters]) -> dict[int, dict[str, float]]:
        """Return the metrics of each job by ClusterCockpit's names.

        Rates are those since the previous call.
        """
        counts: list[Count] = []
        values: dict[int, dict[str, float]] = {job: {} for job in jobs}
        for value in make_job_values(jobs):
            if isinstance(value, Count):
                counts.append(value)
            else:
                values[int(value.scope.stype_id)][value.metric] = value.value
        for metric, rate, scope in self._rates.of(counts, _METRICS, node.clock.monotonic()):
            values[int(scope.stype_id)][metric] = rate
        return {
            job: {metric: number * _OUTPUTS[metric].factor for metric, number in numbers.items()}
            for job, numbers in values.items()
        }


def node_points(sample: SampleAttributes, time: float) -> Iterator[Point]:
    """Return load, memory (GB) and threads of the node. The agent `metrics` sends them too."""
    tags = _tags(sample)
    system = sample.system
    yield Point("cpu_load", tags, system.load1, time)
    yield Point("mem_used", tags, system.used_memory * _GB, time)
    yield Point("proc_run", tags, system.runnable_entities, time)
    yield Point("proc_total", tags, system.existing_entities, time)


def job_points(
    sample: SampleAttributes,
    time: float,
    of_cgroups: Mapping[int, Mapping[str, float | None]],
    pss: dict[int, int],
) -> Iterator[Point]:
    """Return the points of jobs: memory in GB, utilisation in percent of one core, time in s.

    of_cgroups: by job, metrics of the cgroup. They replace the metrics of the processes; None
    removes a metric that the agent `metrics` sends. pss: KB by job, if it was read.
    """
    tags = _tags(sample)
    of_processes: dict[int, list[SampleProcess]] = {job: [] for job in of_cgroups}
    for job in sample.jobs:
        if not job.epoch:
            of_processes.setdefault(job.job, []).extend(job.processes)
    for number, processes in of_processes.items():
        own = tags | {"stype": "job", "stype-id": str(number)}
        for metric, value in (_sums(processes) | dict(of_cgroups.get(number, {}))).items():
            if value is not None:
                yield Point(metric, own, value, time)
        if number in pss:
            yield Point("job_mem_pss", own, pss[number] * _GB, time)


def find_owned_elsewhere(counters: JobCounters) -> dict[str, float | None]:
    """Return the metrics of processes that a job's cgroup has too, each with None.

    One agent sends each metric: `metrics` for a job with a cgroup, else `sample`.
    """
    owned: dict[str, float | None] = {}
    if counters.mem_rss is not None:
        owned["job_mem_rss"] = None
    if counters.cpu_time is not None:
        owned["job_cpu_util"] = None
    return owned


def _tags(sample: SampleAttributes) -> dict[str, str]:
    return {"cluster": sample.cluster, "hostname": sample.node, "type": "node"}


def _sums(processes: list[SampleProcess]) -> dict[str, float | None]:
    """Return the sums over the processes of a job."""
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


def gpu_points(
    sample: SampleAttributes, time: float, allocations: list[Allocation], reading: GpuReading
) -> Iterator[Point]:
    """Return the points of a sample: utilisation in percent of one card, memory in GB.

    A job without any card that reports utilisation has no `job_gpu_util`, instead of 0. An instance
    is used by one job alone: its utilisation is the job's.
    """
    from ccagent.agents.sonar.jobs.allocations import idle_cards

    used: dict[int, dict[int, float]] = {}
    memory: dict[int, int] = {}
    for job in sample.jobs:
        if job.epoch:
            continue
        for process in job.processes:
            for use in process.gpus if process.cmd != ALLOCATED else ():
                cards = used.setdefault(job.job, {})
                cards[use.index] = cards.get(use.index, 0.0) + use.gpu_util
                memory[job.job] = memory.get(job.job, 0) + use.gpu_memory
    _add_instances(used, allocations, reading)
    tags = {"cluster": sample.cluster, "hostname": sample.node, "type": "node", "stype": "job"}
    for number, cards in used.items():
        own = tags | {"stype-id": str(number)}
        if any(cards.values()) or not reading.without_utilization.issuperset(cards):
            yield Point("job_gpu_util", own, round(sum(cards.values()), 1), time)
        yield Point("job_gpu_mem_used", own, memory.get(number, 0) * _GB, time)
    for allocation in allocations:
        own = tags | {"stype-id": str(allocation.job)}
        idle = idle_cards(allocation, used.get(allocation.job, {}), reading)
        yield Point("job_gpus_allocated", own, len(allocation.cards), time)
        yield Point("job_gpus_idle", own, len(idle), time)
        active = _sm_activity(allocation, reading)
        if active is not None:
            yield Point("job_gpu_sm_active", own, active, time)


def _add_instances(
    used: dict[int, dict[int, float]], allocations: list[Allocation], reading: GpuReading
) -> None:
    """Add the utilisation of instances by the job that they are allocated to."""
    known = reading.instances - reading.without_utilization
    use = {card.index: float(card.ce_util) for card in reading.cards if card.index in known}
    for allocation in allocations:
        for index in use.keys() & set(allocation.cards):
            used.setdefault(allocation.job, {})[index] = use[index]


def _sm_activity(allocation: Allocation, reading: GpuReading) -> float | None:
    """Return the mean percent of busy SMs of a job's cards; None if one does not report it."""
    active = [
        detail.value / PER_PERCENT
        for index in allocation.cards
        for detail in reading.details.get(index, ())
        if detail.name == "sm_active"
    ]
    is_complete = active and len(active) == len(allocation.cards)
    return round(sum(active) / len(active), 1) if is_complete else None
