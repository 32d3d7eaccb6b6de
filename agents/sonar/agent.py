"""The agent `sample`: its keys, and a sample envelope of the node, its jobs and their processes."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta, structs

from ccagent.agents.base import Agent, AgentSettings, GpuSettings, make_error
from ccagent.agents.sonar.jobs.records import JobRecords
from ccagent.agents.sonar.process import Process, ProcessSelection, ProcessSource
from ccagent.agents.sonar.sources import SourceName, open_source
from ccagent.config.duration import Duration
from ccagent.errors import NotHereError
from ccagent.log import logger
from ccagent.machine.cgroup.jobs import count_unknown
from ccagent.machine.clock import timestamp
from ccagent.machine.gpu.vendor import is_any_present
from ccagent.machine.system_state import read_system
from ccagent.records.envelopes import (
    SONAR_EPOCH,
    SampleAttributes,
    SampleData,
    SampleEnvelope,
    SampleOfProcesses,
    SampleOfStreams,
)
from ccagent.records.message import FORMATS, Format, Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.agents.sonar.jobs.accounting import JobMemoryReader, JobPss, MemoryScale
    from ccagent.agents.sonar.jobs.allocations import Allocation, Allocations
    from ccagent.agents.sonar.points import CgroupMetrics
    from ccagent.machine.cgroup.counters import JobCgroups, JobCounters
    from ccagent.machine.checks import Check
    from ccagent.machine.gpu.gpus import GpuReading, Gpus
    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SampleJob

_FIRST_INTERVAL = 0.1
_ERRORS_SENT = 50
_ACTIVITY = ("graphics_active", "sm_active")
_BOOT_TOLERANCE = 60


class SampleSettings(GpuSettings, frozen=True, kw_only=True):
    """The keys of [agents.sample]."""

    renamed: ClassVar[dict[str, str]] = {
        **GpuSettings.renamed,
        "batchless": "jobs-by-process-group",
    }

    source: Annotated[
        SourceName, Meta(description="source of processes; auto: the cheapest that works here")
    ] = "auto"
    exclude_system_jobs: Annotated[
        bool, Meta(description="exclude processes of users below 1000, unless in a container")
    ] = False
    exclude_users: Annotated[list[str], Meta(description="users to exclude, by name")] = []
    exclude_commands: Annotated[
        list[str], Meta(description="commands to exclude, by the beginning of their name")
    ] = []
    min_cpu_time: Annotated[Duration, Meta(description="exclude processes with less CPU time")] = (
        Duration("0s")
    )
    rollup: Annotated[
        bool,
        Meta(description="one record for childless processes of equal job, parent and command"),
    ] = False
    jobs_by_process_group: Annotated[
        bool, Meta(description="take the process group as the job even inside Slurm jobs")
    ] = False
    preset: Annotated[
        Literal["", "jobanalyzer"],
        Meta(
            description="process records of all sinks for a receiver that takes differences of"
            " cpu_time: jobanalyzer; empty: for each sink those of its receiver"
        ),
    ] = ""
    job_memory: Annotated[
        Literal["auto", "processes", "cgroup"],
        Meta(
            description="resident_memory of a Slurm job's processes: processes: as the kernel"
            " counts it for each; cgroup: scaled to the sum of the control group; auto: cgroup in"
            " records for Jobanalyzer"
        ),
    ] = "auto"
    process_io: Annotated[
        Literal["calls", "storage"],
        Meta(
            description="source of data_read and data_written: bytes of read and write calls,"
            " or of storage, as in Sonar"
        ),
    ] = "calls"
    points: Annotated[
        Literal["auto", "own", "all"],
        Meta(
            description="which metrics lines have: own: those that the agent metrics does not send;"
            " all: those too; auto: own where that agent is configured"
        ),
    ] = "auto"
    job_pss: Annotated[
        bool, Meta(description="read memory of jobs with shared pages divided (PSS); costly")
    ] = False
    gpu_activity: Annotated[
        bool,
        Meta(
            description="lines have the activity of SMs, and the use of MIG instances, where NVML"
            " reports them (Hopper and later)"
        ),
    ] = True

    scontrol: Annotated[
        str, Meta(description="the program scontrol, the last source of a job's cards")
    ] = "scontrol"
    squeue: Annotated[
        str, Meta(description="the program squeue, source of the user of a job without processes")
    ] = "squeue"

    def beside(self, agents: Mapping[str, AgentSettings]) -> SampleSettings:
        """Return the settings with `points` resolved.

        "own" if the agent `metrics` sends metrics of jobs, else "all".
        """
        if self.points != "auto" or "metrics" not in agents:
            return self
        from ccagent.agents.metrics.settings import MetricsSettings

        other = agents["metrics"]
        is_owner = isinstance(other, MetricsSettings) and other.has_jobs
        return structs.replace(self, points="own" if is_owner else "all")


class SampleAgent(Agent[SampleSettings]):
    """Samples the processes and jobs of this node, and CPUs, load, memory and disks of the node."""

    name = "sample"
    formats: ClassVar[frozenset[Format]] = frozenset(FORMATS)
    extras: ClassVar[frozenset[str]] = Agent.extras | {
        "allocated-gpus",
        "job-cgroups",
        "job-energy",
    }
    Settings = SampleSettings

    def __init__(self, settings: SampleSettings, wanted: frozenset[Format]) -> None:
        super().__init__(settings, wanted)
        self._node: Node | None = None
        self._source: ProcessSource | None = None
        self._records: dict[bool, JobRecords] = {}
        self._gpus: Gpus | None = None
        self._allocations: Allocations | None = None
        self._cgroups: JobCgroups | None = None
        self._metrics: CgroupMetrics | None = None
        self._pss: JobPss | None = None
        self._memory: JobMemoryReader | None = None
        self._scales: dict[bool, MemoryScale] = {}
        self._boot = 0

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of processes, kernel programs, cards, and wanted data of jobs."""
        from ccagent.agents.sonar.sources.checks import check_sources
        from ccagent.machine.checks import require_proc
        from ccagent.machine.requirements import (
            check_cgroups,
            check_vendors,
            require_program,
            require_task_iterator,
        )

        settings = self.settings
        yield require_proc(node, "all of it", is_vital=True)
        yield from check_sources(node, settings.source)
        yield require_task_iterator(node, "the way to read processes that costs least")
        yield from check_vendors(node, settings.gpu_vendors)
        if "line" in self.wanted or "job-cgroups" in settings.extras:
            yield from check_cgroups(node, "what jobs use, by their control groups")
        if settings.gpu_vendors and self._wants_allocations:
            impact = "cards of jobs that are in no control group"
            yield require_program(node, settings.scontrol, impact)
            yield require_program(node, settings.squeue, "users of jobs without processes")

    def prepare(self, node: Node) -> float:
        """Read CPU times; a sample 100 ms later then has utilisation."""
        (self._source or self._open_source(node)).begin()
        self._read_accounts(node, [])
        gpus = self._cards(node)
        if gpus is not None:
            gpus.start()
        return _FIRST_INTERVAL

    def sample(self, node: Node) -> Iterator[Record]:
        """Return a SampleEnvelope, and points if a sink wants them."""
        now = node.clock.time()
        gpus = self._cards(node)
        if gpus is not None:
            # The cards answer while processes are read.
            gpus.ask(
                "read", _ACTIVITY if self.settings.gpu_activity and "line" in self.wanted else ()
            )
        source = self._source or self._open_source(node)
        processes = source.read()
        errors = list(source.errors)
        boot, system = read_system(node, errors)
        self.is_blind = not (processes or system.cpus or system.used_memory)
        if self.is_blind:
            errors.append("can't read anything below /proc: is it mounted?")
            logger.error("agent sample: %s", "; ".join(errors[-3:]))
        reading = gpus.reading(errors) if gpus is not None else None
        if reading is not None:
            system = structs.replace(system, gpus=reading.cards)
        on_cards = reading.processes if reading is not None else {}
        allocations: list[Allocation] = []
        if reading is not None and reading.cards and self._wants_allocations:
            allocations = self._read_allocations(node, processes, reading)
        counters, values = self._read_accounts(node, errors)
        pss = self._read_pss(node, processes, errors) if self.settings.job_pss else {}
        wanted = self._wanted_records
        # Records in which the memory of jobs is that of their control groups.
        which = self.settings.job_memory
        scaled = [each for each in wanted if which == "cgroup" or (which == "auto" and each)]
        memory = self._read_memory(node, counters, errors) if scaled else {}
        sent_errors = [make_error(node, text) for text in errors[:_ERRORS_SENT]]
        if errors[_ERRORS_SENT:]:
            text = f"and {len(errors) - _ERRORS_SENT} more errors"
            sent_errors.append(make_error(node, text))
        epoch = self._epoch(boot)
        samples: list[SampleAttributes] = []
        for as_streams in wanted:
            records = self._records.get(as_streams) or self._make_records(as_streams=as_streams)
            jobs = records.make(node, processes, epoch, on_cards, counts_ended=source.counts_ended)
            if reading is not None and "allocated-gpus" in self.settings.extras:
                records.add_allocated(node, jobs, allocations, reading.cards)
            attributes = SampleAttributes(
                time=timestamp(now),
                cluster=node.cluster,
                node=node.hostname,
                system=system,
                jobs=self._with_accounts(jobs, counters, pss) if self.settings.extras else jobs,
                errors=sent_errors,
            )
            samples.append(attributes)
            scale = memory if as_streams in scaled else {}
            yield self._envelope(attributes, scale, as_streams=as_streams, is_only=not wanted[1:])
        if "line" in self.wanted:
            yield from self._points(samples[0], now, counters, values, pss)
            if reading is not None and reading.cards:
                from ccagent.agents.sonar.points import gpu_points

                yield from gpu_points(samples[0], now, allocations, reading)

    def _points(
        self,
        attributes: SampleAttributes,
        now: float,
        counters: dict[int, JobCounters],
        values: dict[int, dict[str, float]],
        pss: dict[int, int],
    ) -> Iterator[Record]:
        """Yield the points of jobs, and of the node if no other agent sends them."""
        from ccagent.agents.sonar.points import find_owned_elsewhere, job_points, node_points

        known: Mapping[int, Mapping[str, float | None]] = values
        if self.settings.points != "own":
            yield from node_points(attributes, now)
        else:
            known = {job: find_owned_elsewhere(counted) for job, counted in counters.items()}
        yield from job_points(attributes, now, known, pss)

    def _envelope(
        self,
        attributes: SampleAttributes,
        memory: dict[int, int],
        *,
        as_streams: bool,
        is_only: bool,
    ) -> SampleEnvelope:
        """Return the envelope of these records; for all receivers if there are no others.

        memory: KB by job of the control groups, if these records need it.
        """
        if memory:
            from ccagent.agents.sonar.jobs.accounting import MemoryScale

            scale = self._scales.setdefault(as_streams, MemoryScale())
            attributes = structs.replace(attributes, jobs=scale.scale(attributes.jobs, memory))
        kind = SampleEnvelope
        if not is_only:
            kind = SampleOfStreams if as_streams else SampleOfProcesses
        data = SampleData(type="sample", attributes=attributes)
        return kind(meta=self.metadata(), data=data)

    @cached_property
    def _wanted_records(self) -> tuple[bool, ...]:
        """Return which records the sinks get: of processes (False), of streams (True), or both."""
        if self.settings.preset:
            return (True,)
        if self.receivers == frozenset({""}):
            return (False,)
        from ccagent.records.receivers import RECEIVERS

        wanted = {
            receiver in RECEIVERS and RECEIVERS[receiver].takes_differences
            for receiver in self.receivers
        }
        # Points are those of processes, whatever other sinks there are.
        return (*sorted(wanted | ({False} if "line" in self.wanted else set())),)

    def _make_records(self, *, as_streams: bool) -> JobRecords:
        records = self._records[as_streams] = JobRecords(
            by_process_group=self.settings.jobs_by_process_group,
            rollup=self.settings.rollup,
            as_streams=as_streams,
        )
        return records

    def _with_accounts(
        self, jobs: list[SampleJob], counters: dict[int, JobCounters], pss: dict[int, int]
    ) -> list[SampleJob]:
        """Return the jobs with the counters of their control groups and energies, if wanted."""
        if "job-cgroups" in self.settings.extras:
            from ccagent.agents.sonar.jobs.accounting import with_cgroups

            jobs = with_cgroups(jobs, counters, pss)
        if "job-energy" in self.settings.extras:
            from ccagent.agents.sonar.jobs.accounting import with_energies

            jobs = with_energies(jobs)
        return jobs

    def close(self) -> None:
        """Close the process source and the libraries of GPUs."""
        # The end of the process closes its files for less than one call for each.
        if self._source is not None and not self.is_only_sample:
            self._source.close()
        if self._gpus is not None:
            self._gpus.close()

    def describe(self) -> dict[str, Any]:
        """Return the number of control groups whose Slurm job is unknown, if there are any."""
        unknown = count_unknown(self._node) if self._node is not None else 0
        return {"unknown_groups": unknown} if unknown else {}

    def attributes(self) -> dict[str, str]:
        """Return the process source and the filters."""
        settings = self.settings
        return {
            "source": self._source.name if self._source is not None else self.settings.source,
            "exclude-system-jobs": str(settings.exclude_system_jobs).lower(),
            "exclude-users": ",".join(settings.exclude_users),
            "exclude-commands": ",".join(settings.exclude_commands),
            "min-cpu-time": str(settings.min_cpu_time),
            "rollup": str(settings.rollup).lower(),
        }

    def _open_source(self, node: Node) -> ProcessSource:
        self._node = node
        settings = self.settings
        selection = ProcessSelection(
            system_jobs=not settings.exclude_system_jobs,
            users=tuple(settings.exclude_users),
            commands=tuple(settings.exclude_commands),
            cpu_time=settings.min_cpu_time.seconds,
            storage_io=settings.process_io == "storage",
        )
        self._source = open_source(settings.source, node, selection)
        return self._source

    def _cards(self, node: Node) -> Gpus | None:
        """Return the readers of cards; None, and no import, without a card."""
        if self._gpus is None and is_any_present(node, self.settings.gpu_vendors):
            self._gpus = self.settings.make_gpus(node)
        return self._gpus

    @property
    def _wants_allocations(self) -> bool:
        return "allocated-gpus" in self.settings.extras or "line" in self.wanted

    def _read_allocations(
        self, node: Node, processes: list[Process], reading: GpuReading
    ) -> list[Allocation]:
        if self._allocations is None:
            from ccagent.agents.sonar.jobs.allocations import Allocations

            self._allocations = Allocations(self.settings.scontrol, self.settings.squeue)
        owned = [(process.pid, process.job, process.uid) for process in processes]
        return self._allocations.read(node, owned, reading)

    def _read_accounts(
        self, node: Node, errors: list[str]
    ) -> tuple[dict[int, JobCounters], dict[int, dict[str, float]]]:
        """Return the cgroup counters by job, and their metrics, if wanted."""
        if "line" not in self.wanted and "job-cgroups" not in self.settings.extras:
            return {}, {}
        if self._cgroups is None:
            from ccagent.machine.cgroup.counters import JobCgroups

            self._cgroups = JobCgroups()
        counters: dict[int, JobCounters] = {}
        with suppress(NotHereError):
            counters = self._cgroups.read(node)
            errors += self._cgroups.errors
        if "line" not in self.wanted:
            return counters, {}
        if self._metrics is None:
            from ccagent.agents.sonar.points import CgroupMetrics

            self._metrics = CgroupMetrics()
        return counters, self._metrics.read(node, counters)

    def _read_memory(
        self, node: Node, counters: dict[int, JobCounters], errors: list[str]
    ) -> dict[int, int]:
        """Return the memory of jobs in KB by their control groups."""
        from ccagent.agents.sonar.jobs.accounting import JobMemoryReader, memory_of

        if counters:
            return memory_of(counters)
        if self._memory is None:
            self._memory = JobMemoryReader()
        memory = self._memory.read(node)
        errors += self._memory.errors
        return memory

    def _read_pss(self, node: Node, processes: list[Process], errors: list[str]) -> dict[int, int]:
        """Return the proportional set size of jobs in KB."""
        if self._pss is None:
            from ccagent.agents.sonar.jobs.accounting import JobPss

            self._pss = JobPss()
        return self._pss.read(node, processes, errors)

    def _epoch(self, boot: int) -> int:
        """Return the `epoch` of jobs outside of Slurm: boot time in seconds since 2020, never 0.

        A step of the clock shifts the kernel's boot time. After a small step, jobs keep their
        identity. A large step corrects a wrong clock and changes the epoch.
        """
        if abs(boot - self._boot) > _BOOT_TOLERANCE:
            self._boot = boot
        return max(1, self._boot - SONAR_EPOCH)
