"""The row of a job: sums over its processes, deltas of its control group, its environment."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from ccagent.errors import CcagentError
from ccagent.machine.cgroup.counters import JobCounters
from ccagent.views.top.snapshot import TopJob, find_notes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.agents.sonar.process import Process
    from ccagent.machine.node import Node
    from ccagent.views.top.snapshot import TopCard


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
    reported = [card.utilization for card in cards if card.utilization is not None]
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
        gpu=sum(reported) / len(reported) if reported else None,
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
    found: dict[bytes, bytes] = {}
    for entry in content.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and (name.startswith(b"SLURM_JOB_") or name == _CPUS):
            found.setdefault(name, value)

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
