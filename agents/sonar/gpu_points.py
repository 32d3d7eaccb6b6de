"""Points of the GPUs of each Slurm job: allocated, used and idle cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.sonar.jobs.allocations import idle_cards
from ccagent.agents.sonar.jobs.records import ALLOCATED
from ccagent.records.points import Point

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.sonar.jobs.allocations import Allocation
    from ccagent.machine.gpu.gpus import GpuReading
    from ccagent.records.envelopes import SampleAttributes

_GB = 1024 / 1e9


def gpu_points(
    sample: SampleAttributes, time: float, allocations: list[Allocation], reading: GpuReading
) -> Iterator[Point]:
    """Return the points of a sample: utilisation in percent of one card, memory in GB.

    A job without any card that reports utilisation has no `job_gpu_util`, instead of 0.
    """
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
    tags = {"cluster": sample.cluster, "hostname": sample.node, "type": "node", "stype": "job"}
    for number, cards in used.items():
        own = tags | {"stype-id": str(number)}
        if any(cards.values()) or not reading.without_utilization.issuperset(cards):
            yield Point("job_gpu_util", own, round(sum(cards.values()), 1), time)
        yield Point("job_gpu_mem_used", own, memory[number] * _GB, time)
    for allocation in allocations:
        own = tags | {"stype-id": str(allocation.job)}
        idle = idle_cards(allocation, used.get(allocation.job, {}), reading)
        yield Point("job_gpus_allocated", own, len(allocation.cards), time)
        yield Point("job_gpus_idle", own, len(idle), time)
