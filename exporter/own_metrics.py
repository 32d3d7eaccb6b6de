"""ccagent's own counters: its version, its process, its agents and sinks."""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING

from ccagent import __version__
from ccagent.commit import commit
from ccagent.counters import resident_memory
from ccagent.exporter.collector import Collector
from ccagent.exporter.family import counter, gauge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.family import Family, Rows
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

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
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
