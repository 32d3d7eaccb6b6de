"""Slurm's queue, nodes and partitions under the names of prometheus-slurm-exporter."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.slurm.tres import gpu_counts
from ccagent.errors import ProgramError
from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import counter, gauge
from ccagent.machine.background import BackgroundCall
from ccagent.machine.slurm_environment import run_slurm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.exporter.exposition import Family, FamilyRows, Labels
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node

_LIMIT = 64 * 1024 * 1024
_TIME_LIMIT = 30.0
_AGE = " Read at most once in slow-every."
_QUEUE = ("%P", "%u", "%a", "%T", "%C", "%r", "%D")
"""Fields of squeue(1), --format: partition, user, account, state, CPUs, reason, nodes."""
_NODES = (
    "NodeHost",
    "StateLong",
    "CPUsState",
    "AllocMem",
    "Memory",
    "Gres",
    "GresUsed",
    "Partition",
)
"""Fields of sinfo(1), --Format. CPUs are allocated/idle/other/total, memory is in MB."""
_SEPARATOR = "\x1f"

_STATES = {
    "PENDING": "pending", "RUNNING": "running", "SUSPENDED": "suspended",
    "CANCELLED": "cancelled", "COMPLETING": "completing", "COMPLETED": "completed",
    "CONFIGURING": "configuring", "FAILED": "failed", "TIMEOUT": "timeout",
    "PREEMPTED": "preempted", "NODE_FAIL": "node_fail",
}  # fmt: skip
_NODE_STATES = {
    "allocated": "alloc", "completing": "comp", "down": "down", "drained": "drain",
    "draining": "drain", "error": "err", "fail": "fail", "failing": "fail", "idle": "idle",
    "maint": "maint", "mixed": "mix", "reserved": "resv",
}  # fmt: skip
_FLAGS = "*~#!%$@^-+"
_JOBS = {
    name: gauge(f"slurm_queue_{name}", f"Jobs in the queue: {name}.{_AGE}")
    for name in (*_STATES.values(), "pending_dependency")
}
_CLUSTER_JOBS = {
    name: gauge(f"slurm_jobs_{name}", f"Jobs of the cluster: {name}.{_AGE}")
    for name in _STATES.values()
}
_CORES = {
    name: gauge(f"slurm_jobs_cores_{name}", f"CPUs of the cluster's jobs: {name}.{_AGE}")
    for name in ("pending", "running")
}
_NODES_TOTAL = gauge("slurm_nodes_total", f"Nodes of the cluster.{_AGE}")
_NODE_COUNTS = {
    name: gauge(f"slurm_nodes_{name}", f"Nodes: {name}.{_AGE}")
    for name in dict.fromkeys(_NODE_STATES.values())
}
_CPUS = {
    name: gauge(f"slurm_cpus_{name}", f"CPUs of the cluster: {name}.{_AGE}")
    for name in ("alloc", "idle", "other", "total")
}
_PARTITION_CPUS = {
    name: gauge(f"slurm_partition_cpus_{public}", f"CPUs of a partition: {public}.{_AGE}",
                "partition")
    for name, public in (
        ("alloc", "allocated"), ("idle", "idle"), ("other", "other"), ("total", "total"),
    )
}  # fmt: skip
_PARTITION_JOBS = {
    name: gauge(
        f"slurm_partition_jobs_{name}", f"{name.capitalize()} jobs of a partition.{_AGE}",
        "partition",
    )
    for name in ("pending", "running")
}  # fmt: skip
_PEOPLE = {
    (kind, name): gauge(f"slurm_{kind}_{name}", f"{text} by {kind}.{_AGE}", kind)
    for kind in ("user", "account")
    for name, text in (
        ("jobs_pending", "Pending jobs"), ("jobs_running", "Running jobs"),
        ("jobs_suspended", "Suspended jobs"), ("cpus_running", "CPUs of running jobs"),
    )
}  # fmt: skip
_OF_NODE = {
    name: gauge(f"slurm_node_{name}", f"{text} of a node.{_AGE}", "node", "status")
    for name, text in (
        ("cpu_alloc", "Allocated CPUs"), ("cpu_idle", "Idle CPUs"), ("cpu_other", "Other CPUs"),
        ("cpu_total", "CPUs"), ("mem_alloc", "Allocated memory in MB"),
        ("mem_total", "Memory in MB"),
    )
}  # fmt: skip
_GPUS = {
    name: gauge(f"slurm_gpus_{name}", f"GPUs of the cluster: {name}.{_AGE}")
    for name in ("total", "alloc", "idle", "other")
}
_STATUS = gauge(
    "slurm_node_status", f"Always 1: the state of a node in a partition.{_AGE}",
    "node", "status", "partition",
)  # fmt: skip
_AVAILABLE = frozenset({"allocated", "completing", "idle", "mixed", "planned"})
_GPU_USE = gauge(
    "slurm_gpus_utilization", f"Allocated share of the GPUs, from 0 to 1; not their use.{_AGE}"
)
_PARTITION_GPUS = {
    name: gauge(f"slurm_partition_gpus_{public}", f"GPUs of a partition: {public}.{_AGE}",
                "partition")
    for name, public in (("alloc", "allocated"), ("idle", "idle"))
}  # fmt: skip
_READ = counter("ccagent_slurm_readings_total", "Readings of squeue and sinfo.")

Values = dict["Family", "dict[Labels, float]"]


class CachedSlurmCollector(Collector, ABC):
    """Values of Slurm's programs, cached for `slow-every`: the programs load the controller.

    programs: names of the programs, for messages. intervals: number of `slow-every` between two
    readings.
    """

    programs: ClassVar[str]
    intervals: ClassVar[int] = 1

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._values: Values | None = None
        self._moment = 0.0
        self._call: BackgroundCall[Values] | None = None
        self._lock = threading.Lock()
        self.readings = 0

    @abstractmethod
    def read_values(self, node: Node) -> Values:
        """Run the programs. Raise NotHereError if one is missing, ProgramError if it fails."""

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Return the values of the last reading. Start another reading if they are outdated.

        Raise NotHereError without the program, ProgramError if it does not answer.
        """
        with self._lock:
            values = self._refresh(node)
        for family, rows in values.items():
            yield family, rows.items()

    def _refresh(self, node: Node) -> Values:
        now = time.monotonic()
        every = self.settings.slow_every.seconds * self.intervals
        if self._call is None and (self._values is None or now >= self._moment + every):
            self._call = BackgroundCall(lambda: self.read_values(node), f"exporter-{self.name}")
        if self._call is not None:
            # The first scrape waits for its values. Later scrapes return the last values, or fail
            # while the controller is down: it must not delay every scrape until its time limit.
            patience = 0.2 if self.readings else _TIME_LIMIT
            if self._call.wait(patience):
                call, self._call = self._call, None
                self._moment = time.monotonic()
                self.readings += 1
                self._values = None
                self._values = call.checked_result()
        if self._values is None:
            raise ProgramError(f"{self.programs}: no answer yet")
        if now > self._moment + 10 * every + _TIME_LIMIT:
            raise ProgramError(f"{self.programs}: no answer for a long time")
        return self._values


class SlurmExporterCollector(CachedSlurmCollector):
    """Sums over squeue and sinfo."""

    programs = "squeue and sinfo"

    def read_values(self, node: Node) -> Values:
        """Return the sums over the queue and the nodes."""
        return read_slurm(node, self.settings)

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Return the sums, and the number of readings."""
        yield from super().collect(node)
        yield _READ, [((), self.readings)]


def read_slurm(node: Node, settings: ExporterSettings) -> Values:
    """Run squeue and sinfo. Return the sums as {family: {labels: number}}.

    Raise NotHereError if a program is missing, ProgramError if it fails.
    """
    # --array: each task of an array is a job, as in prometheus-slurm-exporter.
    squeue = [settings.squeue, "--all", "--array", "--noheader", "--states=all",
              f"--format={_SEPARATOR.join(_QUEUE)}"]  # fmt: skip
    fields = ",".join(f"{name}:{_SEPARATOR}" for name in _NODES)
    sinfo = [settings.sinfo, "--all", "--noheader", "--Node", f"--Format={fields}"]
    values: Values = {}
    add_queue(values, _rows(run_program(node, squeue), len(_QUEUE)))
    add_nodes(values, (row[:-1] for row in _rows(run_program(node, sinfo), len(_NODES) + 1)))
    return values


def run_program(node: Node, command: list[str]) -> str:
    """Return the output of a program of Slurm. Raise as `Node.run` does."""
    content = run_slurm(node, command, time_limit=_TIME_LIMIT, output_limit=_LIMIT)
    return content.decode("utf-8", "replace")


def _rows(content: str, columns: int) -> Iterator[list[str]]:
    for line in content.split("\n"):
        fields = [field.strip() for field in line.split(_SEPARATOR)]
        if len(fields) == columns:
            yield fields


def _add(values: Values, family: Family, labels: Labels, number: float) -> None:
    rows = values.setdefault(family, {})
    rows[labels] = rows.get(labels, 0) + number


def add_queue(values: Values, rows: Iterable[list[str]]) -> None:
    """Add the sums over the rows of squeue to `values`. A row has the fields of `_QUEUE`."""
    for family in (*_JOBS.values(), *_CLUSTER_JOBS.values(), *_CORES.values()):
        _add(values, family, (), 0)
    for partition, user, account, state, cpus, reason, _ in rows:
        name = _STATES.get(state)
        if name is None:
            continue
        cores = int(cpus) if cpus.isdecimal() else 0
        _add(values, _JOBS[name], (), 1)
        _add(values, _CLUSTER_JOBS[name], (), 1)
        if name == "pending" and reason == "Dependency":
            _add(values, _JOBS["pending_dependency"], (), 1)
        if name in _CORES:
            _add(values, _CORES[name], (), cores)
            for each in partition.split(","):
                _add(values, _PARTITION_JOBS[name], (each,), 1)
        if name in {"pending", "running", "suspended"}:
            for kind, who in (("user", user), ("account", account)):
                _add(values, _PEOPLE[kind, f"jobs_{name}"], (who,), 1)
                if name == "running":
                    _add(values, _PEOPLE[kind, "cpus_running"], (who,), cores)


def add_nodes(values: Values, rows: Iterable[list[str]]) -> None:
    """Add the sums over the rows of sinfo to `values`: one row per node and partition."""
    for family in (*_NODE_COUNTS.values(), *_CPUS.values(), *_GPUS.values(), _NODES_TOTAL):
        _add(values, family, (), 0)
    seen: set[str] = set()
    for name, state, cpus, allocated, memory, gres, used, partition in rows:
        counts = cpus.split("/")
        if len(counts) != 4 or not all(count.isdecimal() for count in counts):
            continue
        numbers = dict(zip(_CPUS, map(int, counts), strict=True))
        status = state.rstrip(_FLAGS).lower()
        gpus = _count_gpus(gres, used, is_available=status in _AVAILABLE)
        own = (partition.rstrip("*"),)
        _add(values, _STATUS, (name, status, *own), 1)
        for key, number in numbers.items():
            _add(values, _PARTITION_CPUS[key], own, number)
        for key, family in _PARTITION_GPUS.items() if gpus["total"] else ():
            _add(values, family, own, gpus[key])
        if name not in seen:
            seen.add(name)
            sizes = {"mem_alloc": allocated, "mem_total": memory}
            _add_node(values, (name, status), numbers, gpus, sizes)
    if total := values[_GPUS["total"]][()]:
        values[_GPU_USE] = {(): values[_GPUS["alloc"]][()] / total}


def _count_gpus(gres: str, used: str, *, is_available: bool) -> dict[str, int]:
    """Return the GPUs in the fields Gres and GresUsed of a node, `other` those of no use now."""
    total, taken = (sum(map(int, gpu_counts(text))) for text in (gres, used))
    free = max(0, total - taken)
    idle = free if is_available else 0
    return {"total": total, "alloc": taken, "idle": idle, "other": free - idle}


def _add_node(
    values: Values,
    labels: tuple[str, str],
    cpus: dict[str, int],
    gpus: dict[str, int],
    sizes: dict[str, str],
) -> None:
    """Add a node to the sums of the cluster. labels: its name and state."""
    _add(values, _NODES_TOTAL, (), 1)
    short = _NODE_STATES.get(labels[1])
    if short is not None:
        _add(values, _NODE_COUNTS[short], (), 1)
    for key, family in _GPUS.items():
        _add(values, family, (), gpus[key])
    for key, number in cpus.items():
        _add(values, _CPUS[key], (), number)
        _add(values, _OF_NODE[f"cpu_{key}"], labels, number)
    for key, amount in sizes.items():
        if amount.isdecimal():
            _add(values, _OF_NODE[key], labels, int(amount))
