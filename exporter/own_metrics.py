"""ccagent's names: its own counters, energy, and the readers of the agent `metrics` in base units.

Each reader is a separate collector: it has a duration, and can be excluded.
"""

from __future__ import annotations

import platform
import re
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.agents.metrics.readers.base import NODE, Count
from ccagent.agents.metrics.settings import READERS
from ccagent.commit import version
from ccagent.errors import NotHereError
from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import Columns, Family, counter, gauge
from ccagent.machine.job_energy import latest_energy
from ccagent.machine.own_memory import read_resident

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ccagent.agents.metrics.readers.base import Gauge, Metric, Reader, Scope
    from ccagent.exporter.exposition import FamilyRows, Kind, Labels
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
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

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        release, _, commit = version().partition("+g")
        self._build: Labels = (release, commit, platform.python_version())

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the counters. Counters of agents and sinks exist only in the daemon."""
        yield _BUILD, [(self._build, 1)]
        yield _CPU, [((), round(time.process_time(), 6))]
        yield _MEMORY, [((), read_resident())]
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
_JOB_BOUNDS = {
    f"{part}_{end}": gauge(
        f"ccagent_job_{part}_{end}_joules",
        f"{text} of the true energy of {whose} on this node, under the stated assumptions.",
        "jobid",
    )
    for part, whose in (("energy", "the job"), ("memory_energy", "the job's memory"))
    for end, text in (("least", "Lower bound"), ("most", "Upper bound"))
}
_JOB_IDLE_KNOWN = gauge(
    "ccagent_job_energy_idle_known",
    "1 if the idle power of the job's domains was always known, else 0.", "jobid",
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

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Return the last counters. Raise NotHereError if no agent `energy` runs."""
        del node
        energy = latest_energy()
        if energy is None:
            raise NotHereError("the agent energy does not run in this process")
        jobs = [(str(number), job) for number, job in sorted(energy.jobs.items())]
        jobs = jobs[: self.settings.most_jobs]
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
        bounds = {number: (*job.interval, *job.memory) for number, job in jobs}
        for place, family in enumerate(_JOB_BOUNDS.values()):
            yield family, [((number,), each[place]) for number, each in bounds.items()]
        yield _JOB_IDLE_KNOWN, [((number,), int(job.is_idle_known)) for number, job in jobs]
        for family, amounts in (
            (_NODE, energy.whole), (_SYSTEM, energy.system), (_UNALLOCATED, energy.unallocated),
        ):  # fmt: skip
            yield family, [((part,), amount / _JOULE) for part, amount in amounts.items()]
        yield _NODE_POWER, [((), energy.power / _JOULE)] if energy.power is not None else []


_GAUGES = {
    "": ("", 1.0), "%": ("_ratio", 0.01), "B": ("_bytes", 1.0), "s": ("_seconds", 1.0),
    "W": ("_watts", 1.0), "V": ("_volts", 1.0), "A": ("_amperes", 1.0), "Hz": ("_hertz", 1.0),
    "degC": ("_celsius", 1.0), "rpm": ("_rpm", 1.0), "B/s": ("_bytes_per_second", 1.0),
    "J": ("_joules", 1.0),
}  # fmt: skip
"""Suffix and factor of a gauge, by the unit of the metric."""
_COUNTERS = {
    "%": ("_seconds_total", 0.01), "B/s": ("_bytes_total", 1.0), "1/s": ("_total", 1.0),
    "W": ("_joules_total", 1.0), "": ("_seconds_total", 1.0), "Flops/s": ("_total", 1.0),
}  # fmt: skip
"""Suffix and factor of a counter, by the unit of its rate. A share of time becomes seconds."""
_LABELS = {"network": "device", "disk": "device", "memoryDomain": "memory_domain", "job": "jobid"}
_COMPUTED = re.compile(r".*_avg10|net_bw")
"""Metrics that a query of Prometheus computes from others; not exposed."""
_RENAMED = {"proc_total": "threads", "proc_run": "threads_running"}
"""Metrics with another name here: `_total` marks counters in Prometheus."""
_OF_ALL = re.compile(r", all [a-z ]+$")
_KNOWN_LABEL = re.compile(r"[a-zA-Z_]\w*", re.ASCII)


class _Column(NamedTuple):
    """A family of a reader: the factor of its values, their labels and places in the reading."""

    family: Family
    factor: float
    labels: tuple[Labels, ...]
    places: tuple[int, ...]


class ReaderCollector(Collector):
    """One reader. A metric that has a value of the node is exposed without its other scopes."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._reader: Reader[Any] | None = None
        self._families: dict[tuple[str, Labels], Family | None] = {}
        self._read_before: tuple[list[str], list[Scope]] = [], []
        self._columns: list[_Column] = []

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the counters and gauges of the reader. Raise the reader's errors."""
        reader = self._reader
        if reader is None:
            reader = self._reader = READERS[self.name]()
        reader.begin(node)
        found = [*reader.read_raw(node)]
        read = [each[0] for each in found], [each[2] for each in found]
        if read != self._read_before:
            self._columns = [*self._arrange(found, reader.metrics)]
            self._read_before = read
        for problem in reader.errors:
            self.warn(problem)
        for family, factor, labels, places in self._columns:
            yield family, Columns(labels, scale([found[place][1] for place in places], factor))

    def _arrange(
        self, found: Sequence[Gauge | Count], metrics: Mapping[str, Metric]
    ) -> Iterator[_Column]:
        """Yield the families of a reading. A later reading may have the same metrics and scopes."""
        rows: dict[str, dict[Labels, list[tuple[Labels, int]]]] = {}
        for place, each in enumerate(found):
            names, values = name_labels(each.scope)
            rows.setdefault(each.metric, {}).setdefault(names, []).append((values, place))
        for metric, by_labels in rows.items():
            labels = () if () in by_labels else next(iter(by_labels))
            known = metrics[metric]
            key = (metric, labels)
            if key not in self._families:
                _, first = next(iter(by_labels.values()))[0]
                is_counter = isinstance(found[first], Count)
                self._families[key] = make_family(metric, known, labels, is_counter=is_counter)
            family = self._families[key]
            if family is not None:
                factor = factor_of(known, family.kind)
                yield _Column(family, factor, *zip(*by_labels[labels], strict=True))

    def close(self) -> None:
        """Close the reader."""
        super().close()
        if self._reader is not None:
            self._reader.close()


@lru_cache(maxsize=16384)
def name_labels(scope: Scope) -> tuple[Labels, Labels]:
    """Return the names and the values of the labels of a scope; () for the node."""
    if scope == NODE:
        return (), ()
    pairs = [(_LABELS.get(scope.type, scope.type), scope.type_id)] if scope.type != "node" else []
    if scope.stype:
        pairs.append((_LABELS.get(scope.stype, scope.stype), scope.stype_id))
    names = tuple(name if _KNOWN_LABEL.fullmatch(name) else "part" for name, _ in pairs)
    return names, tuple(value for _, value in pairs)


def make_family(name: str, metric: Metric, labels: Labels, *, is_counter: bool) -> Family | None:
    """Return the family of a metric; None if the metric is not exposed."""
    table = _COUNTERS if is_counter else _GAUGES
    if metric.unit not in table or _COMPUTED.fullmatch(name):
        return None
    suffix, _ = table[metric.unit]
    stem = _RENAMED.get(name, name)
    if stem.startswith("ccagent_"):
        stem = stem.replace("ccagent", "daemon", 1)
    if suffix.startswith("_bytes"):
        stem = stem.replace("_bytes", "")
    kind: Kind = "counter" if is_counter else "gauge"
    about = describe_family(metric.description, labels, is_counter=is_counter)
    text = f"{about[:1].upper()}{about[1:]}. {metric.source}."
    return Family(f"ccagent_{stem}{suffix}", kind, text, labels)


def describe_family(description: str, labels: Labels, *, is_counter: bool) -> str:
    """Return a metric's description without the parts that only hold for rates or sums."""
    if is_counter:
        description = description.partition(";")[0].removeprefix("share of ")
    if labels:
        description = _OF_ALL.sub("", description).replace("the busiest disk", "the disk")
    return description


def scale(values: list[float], factor: float) -> list[float]:
    """Return each value * factor. A factor 1/n divides by n: 57 * 0.01 is not 0.57."""
    if factor == 1:
        return values
    if factor > 1:
        return [value * factor for value in values]
    divisor = round(1 / factor)
    return [value / divisor for value in values]


def factor_of(metric: Metric, kind: Kind) -> float:
    """Return the factor from the reader's number to the base unit."""
    if kind == "gauge":
        return _GAUGES[metric.unit][1]
    return metric.scale * _COUNTERS[metric.unit][1]
