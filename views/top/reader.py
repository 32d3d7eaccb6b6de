"""Reader of a node for `ccagent top`: processes, cards and mounts, from the cheapest sources."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ccagent.agents.jobio.usage import (
    JobIoUsage,
    bytes_read,
    bytes_written,
    is_idle,
    metadata_operations,
    read_calls,
    write_calls,
)
from ccagent.agents.sonar.process import Process, ProcessSelection
from ccagent.agents.sonar.sources import open_source
from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.machine.bpf import pins
from ccagent.machine.cgroup.counters import JobCgroups, JobCounters
from ccagent.machine.cgroup.jobs import job_directories
from ccagent.machine.gpu.vendor import is_any_present
from ccagent.machine.parsed import parse_or
from ccagent.machine.procfs.system import (
    compute_used_memory,
    parse_cpu_list,
    parse_kernel_stat,
    parse_loadavg,
    parse_meminfo,
)
from ccagent.registry import GPU_VENDORS
from ccagent.views.top.snapshot import (
    ReadingTime,
    TopCard,
    TopJob,
    TopMount,
    TopProcess,
    TopSnapshot,
    WatchedJob,
    make_job,
    read_job_environment,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ccagent.agents.jobio.usage import MountUse
    from ccagent.agents.sonar.jobs.allocations import Allocations
    from ccagent.machine.gpu.gpus import GpuReading, Gpus
    from ccagent.machine.node import Node


class CardWatch:
    """The start of the idle time of each card."""

    def __init__(self) -> None:
        self._idle_since: dict[int, float] = {}

    def watch(
        self,
        reading: GpuReading,
        owners: dict[int, int],
        now: float,
        node: Node,
        processes: list[Process],
    ) -> tuple[TopCard, ...]:
        """Return the cards of a reading. owners: jobs by card, from Slurm's allocations."""
        by_pid = {process.pid: process for process in processes} if reading.cards else {}
        used: dict[int, Process] = {}
        for pid, uses in reading.processes.items():
            process = by_pid.get(pid)
            for use in uses:
                if process is not None:
                    used.setdefault(use.index, process)
        idle = self._idle_since
        self._idle_since = {}
        found: list[TopCard] = []
        for card in reading.cards:
            index = card.index
            if index in reading.partitioned:
                continue
            is_unknown = index in reading.without_utilization or card.failing > 0
            if not card.ce_util and not is_unknown:
                self._idle_since[index] = idle.get(index, now)
            process = used.get(index)
            found.append(
                TopCard(
                    index=index,
                    utilization=None if is_unknown else float(card.ce_util),
                    memory=1024 * card.memory,
                    memory_percent=None
                    if index in reading.without_memory
                    else float(card.memory_util),
                    power=card.power,
                    power_limit=card.power_limit,
                    temperature=card.temperature,
                    is_failing=card.failing > 0,
                    job=owners.get(index, process.job if process is not None else 0),
                    user=node.user(process.uid) if process is not None else "",
                    idle=now - self._idle_since.get(index, now),
                )
            )
        return tuple(found)


IO_COUNTS = {
    "read": bytes_read,
    "written": bytes_written,
    "reads": read_calls,
    "writes": write_calls,
    "metadata": metadata_operations,
}
"""The amounts of a mount, by field of `TopMount` and of `JobMount`."""

NOT_LOADED = "I/O by mount is not counted here; as root: ccagent kernel load --io"
NOT_PERMITTED = (
    "I/O by mount: this user may not read it; as root: ccagent kernel load --io --group NAME"
)


class MountWatch:
    """A reader of the counters of mounts. Rates are since the previous reading."""

    def __init__(self, directory: str = pins.DIRECTORY) -> None:
        self._usage = JobIoUsage(directory)

    def read(self, node: Node, living: Collection[int]) -> tuple[tuple[TopMount, ...], str]:
        """Return the mounts of running jobs and of jobs with I/O, and a note if values are missing.

        living: ids of the jobs on this node.
        """
        try:
            use = self._usage.read(node)
        except CcagentError as error:
            return (), explain_mounts(error)
        if use.seconds <= 0:
            return (), ""
        found = tuple(
            _rates(one, use.seconds)
            for one in use.mounts
            if one.job in living or not is_idle(one.delta)
        )
        return found, f"{use.lost} calls are not counted" if use.lost else ""


def explain_mounts(error: CcagentError) -> str:
    """Return the reason for which mounts are unknown, and the fix."""
    match error:
        case NotHereError():
            return NOT_LOADED
        case NotPermittedError():
            return NOT_PERMITTED
        case _:
            return f"I/O by mount: {error}"


def _rates(use: MountUse, seconds: float) -> TopMount:
    return TopMount(
        job=use.job,
        point=use.mount.point,
        type=use.mount.type,
        source=use.mount.source,
        **{name: count(use.delta) / seconds for name, count in IO_COUNTS.items()},
    )


_ENVIRONMENT_EVERY = 15
"""Readings after which an unreadable environment of a job is read again."""

_IDLE, _IOWAIT = 3, 4


class NodeReader:
    """A reader of a node. Rates are since the previous reading."""

    def __init__(self, node: Node, *, has_gpus: bool = True) -> None:
        self._node = node
        self._source = open_source("auto", node, ProcessSelection())
        self._cgroups = JobCgroups()
        self._allocations: Allocations | None = None
        self._gpus: Gpus | None = None
        self._has_gpus = has_gpus
        self._cards = CardWatch()
        self._mounts = MountWatch()
        self._jobs: dict[int, WatchedJob] = {}
        self._io: dict[int, tuple[int, int]] = {}
        self._ticks: dict[int, list[int]] = {}
        self._readings = 0
        self._before = 0.0
        self._uid = os.geteuid()

    def begin(self) -> None:
        """Take the first readings, the base of the next deltas."""
        self._source.begin()
        self.read()

    def close(self) -> None:
        """Close files, and end the processes that have loaded GPU libraries."""
        self._source.close()
        if self._gpus is not None:
            self._gpus.close()

    def read(self) -> TopSnapshot:
        """Read the node."""
        node, hidden = self._node, list[str]()
        gpus = self._open_gpus()
        if gpus is not None:
            gpus.ask("read")
        now = node.clock.monotonic()
        seconds = now - self._before if self._before else 0.0
        self._before = now
        self._readings += 1
        processes = self._source.read()
        counters = self._read_cgroups(hidden)
        cpus = self._read_cpus()
        meminfo = parse_or(self._node, "proc/meminfo", parse_meminfo, None) or {}
        load = parse_or(self._node, "proc/loadavg", parse_loadavg, None)
        reading = gpus.reading(hidden) if gpus is not None else None
        cards: tuple[TopCard, ...] = ()
        if reading is not None:
            owners = self._find_owners(processes, reading)
            cards = self._cards.watch(reading, owners, now, node, processes)
        rates = self._count_io(processes, seconds)
        by_job: dict[int, list[Process]] = {job: [] for job in counters}
        for process in processes:
            by_job.setdefault(process.job, []).append(process)
        self._jobs = {job: self._jobs.get(job) or WatchedJob(now) for job in by_job}
        moment = ReadingTime(seconds, now, node.clock.uptime(), node.clock.time())
        jobs: list[TopJob] = []
        for job, each in by_job.items():
            watched = self._jobs[job]
            self._update(watched, job, each, counters.get(job))
            own = [card for card in cards if card.job == job and job]
            jobs.append(make_job(
                job, watched, each, moment, rates=rates, cards=own, all_cpus=len(cpus),
                is_root=not self._uid,
            ))  # fmt: skip
        mounts, mounts_note = self._mounts.read(node, by_job)
        shown = tuple(self._show(process, rates, reading) for process in processes)
        return TopSnapshot(
            node=node.hostname,
            cluster=node.cluster,
            time=moment.time,
            uptime=moment.uptime,
            load=load.load1 if load is not None else 0.0,
            cpus=cpus,
            memory_used=1024.0 * _used(meminfo),
            memory_total=1024.0 * meminfo.get("MemTotal", 0),
            jobs=tuple(jobs),
            processes=shown,
            cards=cards,
            mounts=mounts,
            mounts_note=mounts_note,
            hidden=(*hidden, *self._explain_rights(processes)),
        )

    def counters_of(self, job: int) -> JobCounters | None:
        """Return the counters of a job's control group at the last reading."""
        kept = self._jobs.get(job)
        return None if kept is None else kept.counters

    def _update(
        self, watched: WatchedJob, job: int, processes: list[Process], counters: JobCounters | None
    ) -> None:
        """Read what is still unknown of a job, and keep the counters of this reading."""
        is_due = self._readings >= watched.environment_at
        if job and watched.environment is None and processes and is_due:
            pids = [process.pid for process in processes if process.uid]
            watched.environment = read_job_environment(self._node, pids)
            watched.environment_at = self._readings + _ENVIRONMENT_EVERY
        if job and watched.cpus is None:
            watched.cpus = self._count_cpus(job)
        starts = [process.start_time for process in processes if process.start_time]
        if starts:
            watched.start = min([*starts, *([] if watched.start is None else [watched.start])])
        watched.before, watched.counters = watched.counters, counters
        watched.user = self._owner(processes) or watched.user

    def _owner(self, processes: Iterable[Process]) -> str:
        """Return the user of a job: the owner of its first process that does not belong to root."""
        uids = [process.uid for process in processes]
        uid = next((uid for uid in uids if uid), uids[0] if uids else None)
        return "" if uid is None else self._node.user(uid)

    def _count_cpus(self, job: int) -> int | None:
        try:
            for each in job_directories(self._node, ("cpuset",)):
                if each.job == job:
                    for name in ("cpuset.cpus", "cpuset.cpus.effective"):
                        found = parse_or(self._node, f"{each.path}/{name}", parse_cpu_list, None)
                        if found:
                            return len(found)
        except CcagentError:
            pass
        return None

    def _read_cgroups(self, hidden: list[str]) -> dict[int, JobCounters]:
        try:
            found = self._cgroups.read(self._node)
        except CcagentError:
            return {}
        hidden += self._cgroups.errors[:1]
        return found

    def _read_cpus(self) -> tuple[float, ...]:
        """Return the use of each hwthread since the previous reading, in percent."""
        stat = parse_or(self._node, "proc/stat", parse_kernel_stat, None)
        if stat is None:
            return ()
        before, self._ticks = self._ticks, stat.times
        found: list[float] = []
        for cpu, ticks in sorted(stat.times.items()):
            earlier = before.get(cpu, [0] * len(ticks))
            deltas = [max(0, new - old) for new, old in zip(ticks, earlier, strict=False)]
            total = sum(deltas)
            idle = deltas[_IDLE] + deltas[_IOWAIT]
            found.append(100.0 * (total - idle) / total if total else 0.0)
        return tuple(found)

    def _count_io(self, processes: list[Process], seconds: float) -> dict[int, tuple[float, float]]:
        """Return B/s read and written by pid, for processes with I/O."""
        before = self._io
        self._io = {process.pid: (process.data_read, process.data_written) for process in processes}
        found: dict[int, tuple[float, float]] = {}
        if not seconds:
            return found
        for pid, (read, written) in self._io.items():
            earlier = before.get(pid)
            if earlier is not None and earlier != (read, written):
                found[pid] = (
                    1024.0 * max(0, read - earlier[0]) / seconds,
                    1024.0 * max(0, written - earlier[1]) / seconds,
                )
        return found

    def _find_owners(self, processes: list[Process], reading: GpuReading) -> dict[int, int]:
        """Return the jobs by card, from Slurm's allocations."""
        if not reading.cards:
            return {}
        if self._allocations is None:
            from ccagent.agents.sonar.jobs.allocations import Allocations

            self._allocations = Allocations("scontrol", "squeue")
        owned = [(process.pid, process.job, process.uid) for process in processes]
        found = self._allocations.read(self._node, owned, reading)
        return {index: one.job for one in found for index in one.cards}

    def _show(
        self, process: Process, rates: dict[int, tuple[float, float]], reading: GpuReading | None
    ) -> TopProcess:
        uses = reading.processes.get(process.pid, ()) if reading is not None else ()
        may_know = not self._uid or process.uid == self._uid
        read, written = rates.get(process.pid, (0.0, 0.0)) if may_know else (None, None)
        return TopProcess(
            # The sources number the records of ended processes; no process has these numbers.
            pid=0 if process.is_ended else process.pid,
            ppid=process.ppid,
            is_ended=process.is_ended,
            user=self._node.user(process.uid),
            job=process.job,
            command=process.command,
            cpu=process.cpu_util,
            memory=1024 * process.resident_memory,
            threads=process.num_threads + 1,
            cpu_time=process.cpu_time,
            read=read,
            written=written,
            gpus=tuple(use.index for use in uses),
            gpu=sum(use.gpu_util for use in uses) if uses else None,
            gpu_memory=1024 * sum(use.gpu_memory for use in uses) if uses else None,
        )

    def _open_gpus(self) -> Gpus | None:
        if self._gpus is None and self._has_gpus:
            if is_any_present(self._node, GPU_VENDORS):
                from ccagent.machine.gpu.gpus import Gpus

                self._gpus = Gpus(self._node, GPU_VENDORS, 1.0)
                self._gpus.start()
            else:
                self._has_gpus = False
        return self._gpus

    def _explain_rights(self, processes: list[Process]) -> list[str]:
        """Return the hidden data of processes and the reasons, a sentence each."""
        if not processes:
            return ["no process can be seen: is /proc mounted?"]
        if not self._uid:
            return []
        if all(process.uid == self._uid for process in processes):
            # In this user's container all processes may be visible, including process 1.
            if any(process.pid == 1 for process in processes):
                return []
            return ["processes of others are hidden: /proc is mounted with hidepid"]
        return ["as an ordinary user: I/O of others' processes and names of their jobs are hidden"]


def _used(meminfo: dict[str, int]) -> int:
    try:
        return compute_used_memory(meminfo)
    except CcagentError:
        return 0
