"""The data of a node at one moment, for `ccagent top`: rows of jobs, and their flags."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import structs

from ccagent.errors import CcagentError
from ccagent.machine.cgroup.counters import JobCounters
from ccagent.machine.procfs.process_files import parse_environ
from ccagent.views.amounts import mean_of_known

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.agents.sonar.process import Process
    from ccagent.machine.node import Node


class TopProcess(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A process. cpu: percent of one core. memory: B, anonymous.

    read, written: B/s of calls; None: hidden from this user. gpus: indices of cards. is_ended: the
    sum over processes that ended since the previous reading, without a pid (0).
    """

    pid: int
    ppid: int
    user: str
    job: int
    command: str
    cpu: float
    memory: int
    threads: int
    cpu_time: int
    read: float | None = None
    written: float | None = None
    gpus: tuple[int, ...] = ()
    gpu: float | None = None
    gpu_memory: int | None = None
    is_ended: bool = False


class TopCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card. utilization: percent, None: not reported. memory: B in use. job: 0: no known job.

    idle: seconds since the last utilization above 0.
    """

    index: int
    utilization: float | None = None
    memory: int = 0
    memory_percent: float | None = None
    power: int = 0
    power_limit: int = 0
    temperature: int = 0
    is_failing: bool = False
    job: int = 0
    user: str = ""
    idle: float = 0.0


class TopMount(msgspec.Struct, frozen=True, kw_only=True):
    """The I/O of a job on a mount. job: 0: all processes without a job.

    read, written: B/s. reads, writes: calls and requests per second. metadata: operations per
    second, such as open, stat and unlink.
    """

    job: int
    point: str
    type: str = ""
    source: str = ""
    read: float = 0.0
    written: float = 0.0
    reads: float = 0.0
    writes: float = 0.0
    metadata: float = 0.0

    @property
    def operations(self) -> float:
        """Return the sum of all operations per second."""
        return self.reads + self.writes + self.metadata


class TopJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job on this node; job 0: all processes without a job.

    cpus: hwthreads that the job may use. cores: cores in use; cpu: percent of cpus. memory: B of
    its programs; charged: including page cache. pressure: percent of time in which a task waited
    for CPU, memory, I/O. history: cpu of the last readings. watched: seconds since the first
    reading.
    """

    job: int
    user: str = ""
    name: str = ""
    partition: str = ""
    cpus: int | None = None
    cores: float = 0.0
    cpu: float | None = None
    processes: int = 0
    threads: int = 0
    memory: float = 0.0
    memory_limit: float | None = None
    peak: float | None = None
    charged: float | None = None
    cache: float | None = None
    oom_kills: int = 0
    pressure: tuple[float | None, float | None, float | None] = (None, None, None)
    gpus: tuple[int, ...] = ()
    gpu: float | None = None
    gpu_memory: int | None = None
    power: int | None = None
    read: float | None = None
    written: float | None = None
    elapsed: float | None = None
    time_limit: float | None = None
    history: tuple[float, ...] = ()
    watched: float = 0.0
    notes: tuple[str, ...] = ()


class TopSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A node at a moment. time: seconds since 1970. cpus: percent busy of each hwthread.

    memory_used, memory_total: B. hidden: data hidden from this user, a sentence each.
    mounts_note: reason for which mounts are unknown or incomplete.
    """

    node: str
    cluster: str
    time: float
    uptime: float
    load: float = 0.0
    cpus: tuple[float, ...] = ()
    memory_used: float = 0.0
    memory_total: float = 0.0
    jobs: tuple[TopJob, ...] = ()
    processes: tuple[TopProcess, ...] = ()
    cards: tuple[TopCard, ...] = ()
    mounts: tuple[TopMount, ...] = ()
    mounts_note: str = ""
    hidden: tuple[str, ...] = ()


_WATCHED = 15.0
"""Seconds before low use is flagged: programs start with reading their input."""

_LOW_GPU, _LOW_CPU = 15.0, 65.0
_FULL, _STALL, _LATE = 90.0, 10.0, 95.0
_ONE_FROM, _ONE_TO = 0.85, 1.01

MEANINGS = {
    "G": "a GPU of the job is idle",
    "g": "its GPUs are used less than 15 %",
    "M": "memory at 90 % of the limit, or processes killed by the OOM killer",
    "m": "10 % of the time a task waits for memory",
    "C": "one core's work on several",
    "c": "its CPUs are used less than 65 %",
    "T": "95 % of the time limit are used",
    "?": "incomplete: a part of the job is not visible",
}
"""Meanings of the flags, for the help."""

BAD = frozenset("GMT")


def find_notes(job: TopJob, cards: Iterable[TopCard]) -> tuple[str, ...]:
    """Return the flags of a job with their words."""
    if not job.job:
        return ()
    own = [card for card in cards if card.index in job.gpus]
    found = [*_gpu_notes(job, own), *_memory_notes(job)]
    if not own:
        found += _cpu_notes(job)
    if job.time_limit and job.elapsed is not None:
        share = 100 * job.elapsed / job.time_limit
        if share > _LATE:
            found.append(f"T {share:.0f} % of time")
    if job.cpus is None or not job.processes:
        found.append("? incomplete")
    return tuple(found)


def _gpu_notes(job: TopJob, cards: list[TopCard]) -> list[str]:
    idle = [card for card in cards if card.idle >= _WATCHED]
    if idle:
        names = ",".join(str(card.index) for card in idle)
        return [f"G GPU {names} idle"]
    use = mean_of_known(card.utilization for card in cards)
    if use is not None and job.watched >= _WATCHED and use <= _LOW_GPU:
        return ["g GPU low"]
    return []


def _memory_notes(job: TopJob) -> list[str]:
    if job.oom_kills:
        return [f"M {job.oom_kills} killed"]
    if job.memory_limit and 100 * job.memory / job.memory_limit >= _FULL:
        return ["M memory full"]
    waits = job.pressure[1]
    return ["m waits for memory"] if waits is not None and waits >= _STALL else []


def _cpu_notes(job: TopJob) -> list[str]:
    if not job.cpus or job.watched < _WATCHED or not job.history:
        return []
    mean = sum(job.history) / len(job.history)
    cores = mean * job.cpus / 100
    if job.cpus > 1 and _ONE_FROM < cores < _ONE_TO:
        return ["C one core"]
    return ["c low CPU"] if mean < _LOW_CPU else []


def letters(notes: Iterable[str]) -> str:
    """Return the flags without words."""
    return "".join(note[0] for note in notes)


_HISTORY = 20


class ReadingTime(NamedTuple):
    """The time of a reading in s: since the previous one (0: none), monotonic, after boot, 1970."""

    seconds: float
    monotonic: float
    uptime: float
    time: float


class WatchedJob:
    """A job between readings.

    before, counters: of its control group, at the previous and at the last reading. start: of its
    first process, in seconds after boot. history: CPU use in percent.
    """

    def __init__(self, now: float) -> None:
        self.since = now
        self.history: deque[float] = deque(maxlen=_HISTORY)
        self.before: JobCounters | None = None
        self.counters: JobCounters | None = None
        self.environment: JobEnvironment | None = None
        self.environment_at = 0
        self.cpus: int | None = None
        self.start: float | None = None
        self.user = ""

    def rate(self, seconds: float, field: str, scale: float) -> float | None:
        """Return the delta of a counter per second.

        None without two readings of the same control groups.
        """
        before, counters = self.before, self.counters
        if before is None or counters is None or not seconds or not counters.is_continued:
            return None
        old: int | None = getattr(before, field)
        new: int | None = getattr(counters, field)
        return None if old is None or new is None else max(0, new - old) * scale / seconds


def make_job(
    job: int,
    watched: WatchedJob,
    processes: list[Process],
    moment: ReadingTime,
    *,
    rates: dict[int, tuple[float, float]],
    cards: list[TopCard],
    all_cpus: int,
    is_root: bool,
) -> TopJob:
    """Return the row of a job. rates: B/s read and written, by pid. all_cpus: of the node."""
    environment = watched.environment or JobEnvironment()
    cpus = watched.cpus or environment.cpus or None
    rate = partial(watched.rate, moment.seconds)
    # Only the control group includes processes that have ended.
    cores = rate("cpu_time", 1e-9)
    if cores is None:
        cores = sum(process.cpu_util for process in processes) / 100
    cpu = 100 * cores / (cpus or all_cpus) if cpus or all_cpus else None
    if cpu is not None and moment.seconds:
        watched.history.append(cpu)
    known = watched.counters or JobCounters()
    own = [rates[process.pid] for process in processes if process.pid in rates]
    read: float | None = sum(one for one, _ in own)
    written: float | None = sum(one for _, one in own)
    if not own and not (is_root and processes):
        read, written = rate("io_read", 1.0), rate("io_write", 1.0)
    resident = 1024.0 * sum(process.resident_memory for process in processes)
    found = TopJob(
        job=job,
        user=watched.user if job else "",
        name=environment.name,
        partition=environment.partition,
        cpus=cpus if job else None,
        cores=cores,
        cpu=cpu,
        processes=len(processes),
        threads=sum(1 + process.num_threads for process in processes),
        memory=resident if known.mem_rss is None else known.mem_rss,
        memory_limit=known.mem_limit,
        peak=known.mem_peak,
        charged=known.mem_used,
        cache=known.mem_file,
        oom_kills=known.oom_kills or 0,
        pressure=(
            rate("pressure_cpu", 1e-4), rate("pressure_memory", 1e-4), rate("pressure_io", 1e-4),
        ),
        gpus=tuple(card.index for card in cards),
        gpu=mean_of_known(card.utilization for card in cards),
        gpu_memory=sum(card.memory for card in cards) if cards else None,
        power=sum(card.power for card in cards) if cards else None,
        read=read,
        written=written,
        elapsed=_elapsed(watched.start, environment, moment) if job else None,
        time_limit=_limit(environment) if job else None,
        history=tuple(watched.history),
        watched=moment.monotonic - watched.since,
    )  # fmt: skip
    return structs.replace(found, notes=find_notes(found, cards))


def _elapsed(start: float | None, environment: JobEnvironment, moment: ReadingTime) -> float | None:
    """Return the seconds since the job's start. start: of the first process, after boot.

    Slurm's start time is used unless it is later than the start of the first process.
    """
    first = None if start is None else max(0.0, moment.uptime - start)
    if environment.start:
        since = moment.time - environment.start
        if since >= 0 and (first is None or since >= first):
            return since
    return first


def _limit(environment: JobEnvironment) -> float | None:
    seconds = environment.end - environment.start
    return float(seconds) if environment.start and seconds > 0 else None


_MOST_ASKED = 4
_LONGEST = 256
_DIGITS = 12
_CPUS = b"SLURM_CPUS_ON_NODE"
_JOB_VARIABLES = (
    b"SLURM_JOB_ID", b"SLURM_JOB_NAME", b"SLURM_JOB_PARTITION", b"SLURM_JOB_START_TIME",
    b"SLURM_JOB_END_TIME", _CPUS,
)  # fmt: skip


class JobEnvironment(NamedTuple):
    """The variables that Slurm sets in the environment of a job.

    start, end: seconds since 1970, 0: unknown. cpus: on this node, 0: unknown.
    """

    name: str = ""
    partition: str = ""
    start: int = 0
    end: int = 0
    cpus: int = 0


def parse_job_environment(content: bytes) -> JobEnvironment | None:
    """Parse /proc/PID/environ. Return None if it lacks Slurm's variables.

    Users can change their environment: these values are only displayed.
    """
    found = parse_environ(content, _JOB_VARIABLES)

    def text(name: bytes) -> str:
        return found.get(name, b"")[:_LONGEST].decode("utf-8", "replace")

    def number(name: bytes, digits: int) -> int:
        value = found.get(name, b"")
        return int(value) if value.isdigit() and len(value) <= digits else 0

    if not found.keys() - {_CPUS}:
        return None
    return JobEnvironment(
        text(b"SLURM_JOB_NAME"),
        text(b"SLURM_JOB_PARTITION"),
        number(b"SLURM_JOB_START_TIME", _DIGITS),
        number(b"SLURM_JOB_END_TIME", _DIGITS),
        number(_CPUS, 5),
    )


def read_job_environment(node: Node, pids: Iterable[int]) -> JobEnvironment | None:
    """Return the job's variables from the first process that has them; None if none has."""
    for pid in sorted(pids)[:_MOST_ASKED]:
        try:
            found = parse_job_environment(node.read(f"proc/{pid}/environ"))
        except CcagentError:
            continue
        if found is not None:
            return found
    return None
