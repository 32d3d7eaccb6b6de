"""Energy of the node and its jobs, from the agent `energy` of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import NotHereError
from ccagent.exporter.collector import Collector
from ccagent.exporter.family import counter, gauge
from ccagent.machine.job_energy import latest_energy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.family import Family, Rows
    from ccagent.machine.node import Node

_JOULE = 1e6
_JOB = counter(
    "ccagent_job_energy_joules_total",
    "Energy of the job on this node. part: cpu, memory, gpu, other. share: active, by CPU time; or"
    " idle, by allocation.",
    "jobid", "part", "share",
)  # fmt: skip
_JOB_POWER = gauge(
    "ccagent_job_power_watts", "Power of the job in the last sample of the agent energy.", "jobid"
)
_JOB_COVERAGE = gauge(
    "ccagent_job_energy_coverage_ratio",
    "Share of the job's time for which its energy is known.", "jobid",
)  # fmt: skip
_NODE = counter("ccagent_node_energy_joules_total", "Energy of the node.", "part")
_SYSTEM = counter(
    "ccagent_node_energy_system_joules_total",
    "Active energy outside of jobs; ccagent_node_energy_joules_total includes it.", "part",
)  # fmt: skip
_UNALLOCATED = counter(
    "ccagent_node_energy_unallocated_joules_total",
    "Idle energy that no job has allocated; ccagent_node_energy_joules_total includes it.", "part",
)  # fmt: skip
_NODE_POWER = gauge(
    "ccagent_node_power_watts", "Power of the node in the last sample of the agent energy."
)


class EnergyCollector(Collector):
    """Counters of the agent `energy` in the daemon. The series of a job end with the job."""

    name = "energy"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Return the last counters. Raise NotHereError if no agent `energy` runs."""
        del node
        energy = latest_energy()
        if energy is None:
            raise NotHereError("the agent energy does not run in this process")
        jobs = [(str(number), job) for number, job in sorted(energy.jobs.items())]
        jobs = jobs[: self.settings.max_jobs]
        yield (
            _JOB,
            [
                ((number, part, share), amount / _JOULE)
                for number, job in jobs
                for (part, share), amount in job.parts.items()
            ],
        )
        yield (
            _JOB_POWER,
            [((number,), job.power / _JOULE) for number, job in jobs if job.power is not None],
        )
        yield _JOB_COVERAGE, [((number,), round(job.coverage, 6)) for number, job in jobs]
        for family, amounts in (
            (_NODE, energy.whole), (_SYSTEM, energy.system), (_UNALLOCATED, energy.unallocated),
        ):  # fmt: skip
            yield family, [((part,), amount / _JOULE) for part, amount in amounts.items()]
        yield _NODE_POWER, [((), energy.power / _JOULE)] if energy.power is not None else []
