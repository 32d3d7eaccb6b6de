"""ccagent's own counters: its version, its process, its agents and sinks."""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING

from ccagent import __version__
from ccagent.commit import commit
from ccagent.counters import resident_memory
from ccagent.errors import NotHereError
from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import counter, gauge
from ccagent.machine.job_energy import latest_energy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.exposition import FamilyRows
    from ccagent.machine.node import Node


_BUILD = gauge(
    "ccagent_build_info", "Always 1: the version of ccagent.",
    "version", "revision", "pythonversion",
)  # fmt: skip
_CPU = counter("ccagent_own_cpu_seconds_total", "CPU time of ccagent's process.")
_MEMORY = gauge("ccagent_own_resident_memory_bytes", "Resident memory of ccagent's process.")
_AGENT = {
    "samples": counter("ccagent_agent_samples_total", "Finished samples.", "agent"),
    "errors": counter("ccagent_agent_errors_total", "Failed samples.", "agent"),
    "skipped": counter(
        "ccagent_agent_skipped_total",
        "Samples not taken because the last one still ran.", "agent",
    ),
    "seconds": counter("ccagent_agent_seconds_total", "Duration of samples.", "agent"),
    "cpu_seconds": counter("ccagent_agent_cpu_seconds_total", "CPU time of samples.", "agent"),
    "unencodable": counter(
        "ccagent_agent_unencodable_total", "Records that their format can't express.", "agent"
    ),
    "restarts": counter(
        "ccagent_agent_restarts_total", "Restarts after unforeseen errors.", "agent"
    ),
}  # fmt: skip
_SINK = {
    "queued": counter("ccagent_sink_queued_total", "Messages put into the queue.", "sink"),
    "sent": counter(
        "ccagent_sink_sent_total", "Messages handed to the transport, repetitions included.", "sink"
    ),
    "acknowledged": counter(
        "ccagent_sink_acknowledged_total", "Messages that the receiver has acknowledged.", "sink"
    ),
    "retried": counter(
        "ccagent_sink_retried_total", "Messages to be sent again after a failure.", "sink"
    ),
    "rejected": counter(
        "ccagent_sink_rejected_total", "Dead letters: messages that the receiver refused.", "sink"
    ),
    "dropped": counter(
        "ccagent_sink_dropped_total", "Messages dropped because of their age or a full queue.",
        "sink",
    ),
    "damaged": counter(
        "ccagent_sink_damaged_total", "Damaged messages in the queue.", "sink"
    ),
    "restarts": counter("ccagent_sink_restarts_total", "Restarts after unforeseen errors.", "sink"),
    "backlog": gauge("ccagent_sink_backlog", "Messages in the queue.", "sink"),
    "backlog_bytes": gauge("ccagent_sink_backlog_bytes", "Bytes in the queue.", "sink"),
}  # fmt: skip
_STOPPED = counter(
    "ccagent_exporter_stopped_clients_total",
    "Connections and requests of scrapers that the exporter has ended, by reason.", "reason",
)  # fmt: skip


class OwnCollector(Collector):
    """Counters of ccagent's process since its start."""

    name = "own"

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the counters. Counters of agents and sinks exist only in the daemon."""
        yield _BUILD, [((__version__, commit() or "", platform.python_version()), 1)]
        yield _CPU, [((), round(time.process_time(), 6))]
        yield _MEMORY, [((), resident_memory() * 1024)]
        stopped = self.sources.stopped_clients
        if stopped is not None:
            yield _STOPPED, [*stopped.rows()]
        if node.own_counters is None:
            return
        counters = node.own_counters()
        for field, family in _AGENT.items():
            yield family, [((name,), getattr(a, field)) for name, a in counters.agents.items()]
        for field, family in _SINK.items():
            yield family, [((name,), getattr(s, field)) for name, s in counters.sinks.items()]


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

    def collect(self, node: Node) -> Iterator[FamilyRows]:
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
