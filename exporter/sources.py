"""Readings that the collectors of one scrape share: jobs, cards, allocations."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ccagent.errors import CcagentError, NotHereError
from ccagent.exporter.job_processes import JobProcesses
from ccagent.log import logger
from ccagent.machine.cgroup.counters import JobCgroups

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.agents.sonar.jobs.allocations import Allocation, Allocations
    from ccagent.exporter.http_clients import StoppedClients
    from ccagent.exporter.job_processes import JobIdentity
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.machine.cgroup.counters import JobCounters
    from ccagent.machine.gpu.gpus import GpuReading, Gpus
    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SysinfoGpuCard

T = TypeVar("T")

_SAME_SCRAPE = 0.5
"""Maximum age in seconds of a reading of the same scrape."""
_DESCRIBED_FOR = 3600.0
_DETAILS = (
    "energy", "mem_utilization", "encoder_utilization", "decoder_utilization", "pcie_replays",
    "remapped_rows_corrected", "remapped_rows_uncorrected", "remapped_rows_failure", "xid",
)  # fmt: skip


class JobOnNode(NamedTuple):
    """A job on this node. group: one of its control group directories. pids: its processes."""

    job: int
    counters: JobCounters
    group: str
    identity: JobIdentity
    pids: tuple[int, ...]


class JobsOnNode(NamedTuple):
    """The exposed jobs, sorted by id, and the number of jobs that are left out."""

    jobs: list[JobOnNode]
    left_out: int


class CardsOnNode(NamedTuple):
    """Cards of the node.

    descriptions: by card index. allocations: of cards to jobs. jobs: job id by process id.
    """

    reading: GpuReading
    descriptions: dict[int, SysinfoGpuCard]
    allocations: list[Allocation]
    jobs: dict[int, int]

    def used_by_job(self) -> dict[int, dict[int, float]]:
        """Return the utilisation in percent by job id and card index, summed over processes."""
        found: dict[int, dict[int, float]] = {}
        for pid, uses in self.reading.processes.items():
            job = self.jobs.get(pid)
            if job is not None:
                cards = found.setdefault(job, {})
                for use in uses:
                    cards[use.index] = cards.get(use.index, 0.0) + (use.gpu_util or 0.0)
        return found


class SharedReading(Generic[T]):
    """A reading that is taken once per scrape and shared by the collectors."""

    def __init__(self, read: Callable[[Node], T]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._moment = 0.0
        self._value: T | CcagentError | None = None

    def get(self, node: Node) -> T:
        """Return the reading of this scrape. Raise its CcagentError if it failed."""
        with self._lock:
            value = self._value
            if value is None or time.monotonic() - self._moment > _SAME_SCRAPE:
                try:
                    value = self._read(node)
                except CcagentError as error:
                    value = error
                self._value = value
                self._moment = time.monotonic()
        if isinstance(value, CcagentError):
            raise value
        return value


class NodeSources:
    """The shared readings. Each is taken on demand."""

    def __init__(self, settings: ExporterSettings) -> None:
        self._settings = settings
        self.stopped_clients: StoppedClients | None = None
        self.jobs = SharedReading(self._read_jobs)
        self.cards = SharedReading(self._read_cards)
        self._cgroups = JobCgroups(is_detailed=True)
        self._processes = JobProcesses(reads_environment=settings.job_info == "environment")
        self._gpus: Gpus | None = None
        self._allocations: Allocations | None = None
        self._descriptions: dict[int, SysinfoGpuCard] = {}
        self._described_at: float | None = None

    def _read_jobs(self, node: Node) -> JobsOnNode:
        """Read the control groups of all jobs. Raise NotHereError if Slurm has created none."""
        counters = self._cgroups.read(node)
        for problem in self._cgroups.errors:
            logger.warning("exporter: jobs: %s", problem)
        # The oldest jobs keep their series: an interrupted series is worse than a missing series.
        chosen = sorted(counters)[: self._settings.max_jobs]
        found: list[JobOnNode] = []
        self._processes.begin(node, set(chosen))
        for job in chosen:
            pids, identity = self._processes.of(node, job)
            group = self._cgroups.first_directory(job)
            found.append(JobOnNode(job, counters[job], group, identity, pids))
        return JobsOnNode(found, len(counters) - len(chosen))

    def _read_cards(self, node: Node) -> CardsOnNode:
        """Read the cards through the vendors' libraries. Raise NotHereError without a card."""
        from ccagent.machine.gpu.presence import find_cards, vendor_directories

        vendors = self._settings.gpu_vendors
        if not any(find_cards(node, vendor_directories(vendor)) for vendor in vendors):
            raise NotHereError("no card of the vendors in gpu-vendors")
        gpus = self._open_gpus(node)
        errors: list[str] = []
        if self._described_at is None or time.monotonic() > self._described_at + _DESCRIBED_FOR:
            gpus.ask("describe")
            described = {card.index: card for card in gpus.descriptions(errors)}
            if described:
                self._descriptions = described
                self._described_at = time.monotonic()
        gpus.ask("read", _DETAILS)
        reading = gpus.reading(errors)
        for problem in errors:
            logger.warning("exporter: gpus: %s", problem)
        jobs = self._list_jobs(node)
        processes = [
            JobProcess(pid, each.job, each.identity.uid) for each in jobs for pid in each.pids
        ]
        return CardsOnNode(
            reading,
            self._descriptions,
            self._list_allocations(node, processes, reading),
            {each.pid: each.job for each in processes},
        )

    def _open_gpus(self, node: Node) -> Gpus:
        if self._gpus is None:
            from ccagent.config.duration import Duration
            from ccagent.machine.gpu.gpus import Gpus
            from ccagent.machine.gpu.settings import GpuSettings

            self._gpus = Gpus(
                node,
                GpuSettings(gpu_vendors=self._settings.gpu_vendors, gpu_time_limit=Duration("5s")),
            )
        return self._gpus

    def _list_jobs(self, node: Node) -> list[JobOnNode]:
        try:
            return self.jobs.get(node).jobs
        except CcagentError:
            return []

    def _list_allocations(
        self, node: Node, processes: list[JobProcess], reading: GpuReading
    ) -> list[Allocation]:
        if not processes:
            return []
        if self._allocations is None:
            from ccagent.agents.sonar.jobs.allocations import Allocations

            self._allocations = Allocations("scontrol", self._settings.squeue)
        return self._allocations.read(node, processes, reading)

    def close(self) -> None:
        """End the processes that have loaded the GPU libraries."""
        if self._gpus is not None:
            self._gpus.close()


class JobProcess(NamedTuple):
    """A process of a job, the input of `Allocations.read`."""

    pid: int
    job: int
    uid: int
