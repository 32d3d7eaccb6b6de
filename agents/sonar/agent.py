"""The agent `sample`: one sample envelope of the node, its jobs and their processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from ccagent.agent import Agent, AgentSettings, error_object
from ccagent.agents.sonar.selection import Selection
from ccagent.agents.sonar.system import read_system
from ccagent.clock import timestamp
from ccagent.duration import Duration
from ccagent.envelopes import (
    NO_FLOAT,
    SONAR_EPOCH,
    SampleAttributes,
    SampleData,
    SampleEnvelope,
    SampleJob,
    SampleProcess,
)
from ccagent.errors import CcagentError
from ccagent.message import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.sonar.process import Process, ProcessSource
    from ccagent.agents.sonar.rollup import SyntheticPids
    from ccagent.message import Format, Record
    from ccagent.node import Node

_FIRST_INTERVAL = 0.1
_ERRORS_SENT = 50
_PID_MAX = 4_194_304
_BOOT_TOLERANCE = 60


class SampleSettings(AgentSettings, frozen=True, kw_only=True):
    """The keys of [agents.sample]."""

    source: Annotated[
        Literal["auto", "procfs", "psutil"],
        Meta(description="where processes come from; auto: the cheapest that works here"),
    ] = "auto"
    exclude_system_jobs: Annotated[
        bool, Meta(description="leave out processes of users below 1000, unless in a container")
    ] = False
    exclude_users: Annotated[list[str], Meta(description="users to leave out, by name")] = []
    exclude_commands: Annotated[
        list[str], Meta(description="commands to leave out, by the beginning of their name")
    ] = []
    min_cpu_time: Annotated[
        Duration, Meta(description="leave out processes that have used less CPU time")
    ] = Duration("0s")
    rollup: Annotated[
        bool,
        Meta(description="one record for childless processes of equal job, parent and command"),
    ] = False
    batchless: Annotated[
        bool, Meta(description="take the process group as the job even inside Slurm jobs")
    ] = False


class SampleAgent(Agent[SampleSettings]):
    """Processes and jobs of this node: CPU, memory, I/O; CPUs, load, memory, disks of the node."""

    name = "sample"
    formats: ClassVar[frozenset[Format]] = frozenset(FORMATS)
    Settings = SampleSettings

    def __init__(self, settings: SampleSettings, wanted: frozenset[Format]) -> None:
        super().__init__(settings, wanted)
        self._source: ProcessSource | None = None
        self._records: dict[int, tuple[Process, float, SampleProcess]] = {}
        self._synthetic: SyntheticPids | None = None
        self._boot = 0

    def prepare(self, node: Node) -> float:
        """Read CPU times, so that the first sample can tell utilisation 100 ms later."""
        self._opened(node).begin()
        return _FIRST_INTERVAL

    def sample(self, node: Node) -> Iterator[Record]:
        """Read the machine once: a SampleEnvelope, and points if a sink wants them."""
        now = node.clock.time()
        source = self._opened(node)
        processes = source.read()
        errors = list(source.errors)
        boot, system = read_system(node, errors)
        jobs = self._jobs(node, processes, self._epoch(boot))
        attributes = SampleAttributes(
            time=timestamp(now),
            cluster=node.cluster,
            node=node.hostname,
            system=system,
            jobs=jobs,
            errors=[error_object(node, text) for text in _bounded(errors)],
        )
        yield SampleEnvelope(
            meta=self.metadata(), data=SampleData(type="sample", attributes=attributes)
        )
        if "line" in self.wanted:
            from ccagent.agents.sonar.points import points

            yield from points(attributes, now)

    def close(self) -> None:
        """Close the process source."""
        if self._source is not None:
            self._source.close()

    def attributes(self) -> dict[str, str]:
        """Say what was left out of the sample."""
        settings = self.settings
        return {
            "source": self._source_name(),
            "exclude-system-jobs": str(settings.exclude_system_jobs).lower(),
            "exclude-users": ",".join(settings.exclude_users),
            "exclude-commands": ",".join(settings.exclude_commands),
            "min-cpu-time": str(settings.min_cpu_time),
            "rollup": str(settings.rollup).lower(),
        }

    def _source_name(self) -> str:
        return "procfs" if self.settings.source == "auto" else self.settings.source

    def _opened(self, node: Node) -> ProcessSource:
        """Make the process source at its first use."""
        if self._source is None:
            settings = self.settings
            selection = Selection(
                system_jobs=not settings.exclude_system_jobs,
                users=tuple(settings.exclude_users),
                commands=tuple(settings.exclude_commands),
                cpu_time=settings.min_cpu_time.seconds,
            )
            if self._source_name() == "psutil":
                from ccagent.agents.sonar.psutil_source import PsutilSource

                self._source = PsutilSource(node, selection)
            else:
                from ccagent.agents.sonar.procfs import ProcfsSource

                self._source = ProcfsSource(node, selection)
        return self._source

    def _epoch(self, boot: int) -> int:
        """Give the `epoch` of jobs outside of Slurm: boot time since 2020, never 0.

        A clock that is set shifts the boot time that the kernel tells. Jobs keep their identity
        over small steps; a large one corrects a clock that was wrong.
        """
        if abs(boot - self._boot) > _BOOT_TOLERANCE:
            self._boot = boot
        return max(1, self._boot - SONAR_EPOCH)

    def _jobs(self, node: Node, processes: list[Process], epoch: int) -> list[SampleJob]:
        """Make the records of processes and group them by job and user."""
        uptime = node.clock.uptime()
        records, self._records = self._records, {}
        batchless = self.settings.batchless
        groups: dict[tuple[int, int, int], list[SampleProcess]] = {}
        for process in processes:
            age = uptime - process.start_time
            seconds = process.cpu_seconds
            average = (
                round(100.0 * seconds / max(age, 0.01), 1) or NO_FLOAT if seconds else NO_FLOAT
            )
            known = records.get(process.pid)
            if known is not None and known[0] is process and known[1] == average:
                record = known[2]
            else:
                record = _record(process, average)
                known = (process, average, record)
            self._records[process.pid] = known
            if process.job and not batchless:
                key = (process.job, 0, process.uid)
            else:
                key = (process.process_group, epoch, process.uid)
            group = groups.get(key)
            if group is None:
                groups[key] = [record]
            else:
                group.append(record)
        if self.settings.rollup:
            self._roll_up(node, groups)
        return [
            SampleJob(job=job, user=node.user(uid), epoch=job_epoch, processes=group)
            for (job, job_epoch, uid), group in groups.items()
        ]

    def _roll_up(self, node: Node, groups: dict[tuple[int, int, int], list[SampleProcess]]) -> None:
        from ccagent.agents.sonar.rollup import SyntheticPids, rolled_up

        if self._synthetic is None:
            self._synthetic = SyntheticPids(_pid_max(node))
        parents = {record.ppid for group in groups.values() for record in group}
        for (job, epoch, uid), group in groups.items():
            key = f"{job}/{epoch}/{uid}"
            groups[job, epoch, uid] = rolled_up(group, parents, key, self._synthetic)
        self._synthetic.end_sample()


def _record(process: Process, average: float) -> SampleProcess:
    return SampleProcess(
        resident_memory=process.resident_memory,
        virtual_memory=process.virtual_memory,
        cmd=process.command,
        pid=process.pid,
        ppid=process.ppid,
        in_container=process.in_container,
        num_threads=process.num_threads,
        cpu_avg=average,
        cpu_util=process.cpu_util or NO_FLOAT,
        cpu_time=process.cpu_time,
        data_read=process.data_read,
        data_written=process.data_written,
        data_cancelled=process.data_cancelled,
    )


def _pid_max(node: Node) -> int:
    """Read /proc/sys/kernel/pid_max; the largest that Linux knows if it can't be read."""
    try:
        return int(node.read("proc/sys/kernel/pid_max"))
    except (CcagentError, ValueError):
        return _PID_MAX


def _bounded(errors: list[str]) -> list[str]:
    if len(errors) <= _ERRORS_SENT:
        return errors
    return [*errors[:_ERRORS_SENT], f"and {len(errors) - _ERRORS_SENT} more errors"]
