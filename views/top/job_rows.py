"""The row of a job: sums over its processes, deltas of its control group, its environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from ccagent.errors import CcagentError
from ccagent.views.top.snapshot import TopJob, find_notes

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable

    from ccagent.agents.sonar.process import Process
    from ccagent.machine.cgroup.counters import JobCounters
    from ccagent.machine.node import Node
    from ccagent.views.top.snapshot import TopCard


class JobDelta(NamedTuple):
    """Deltas of a job since the previous reading.

    seconds: since the previous reading, 0 without one. uptime, time: of the node, now. start: of
    the first process, in seconds after boot. history: the CPU use of this reading is appended.
    """

    before: JobCounters | None
    counters: JobCounters | None
    seconds: float
    environment: JobEnvironment
    cpus: int | None
    uptime: float
    time: float
    start: float | None
    history: deque[float]
    watched: float
    user: str


def make_job(
    job: int,
    processes: list[Process],
    delta: JobDelta,
    rates: dict[int, tuple[float, float]],
    cards: list[TopCard],
    *,
    all_cpus: int,
    is_root: bool,
) -> TopJob:
    """Return the row of a job. rates: B/s read and written, by pid. all_cpus: of the node."""
    cores = _count_cores(processes, delta)
    cpus = delta.cpus
    cpu = 100 * cores / (cpus or all_cpus) if cpus or all_cpus else None
    if cpu is not None and delta.seconds:
        delta.history.append(cpu)
    known, environment = delta.counters, delta.environment
    own = [rates[process.pid] for process in processes if process.pid in rates]
    read: float | None = sum(one for one, _ in own)
    written: float | None = sum(one for _, one in own)
    if not own and not (is_root and processes):
        read = _rate(delta, "io_read", 1.0)
        written = _rate(delta, "io_write", 1.0)
    reported = [card.utilization for card in cards if card.utilization is not None]
    elapsed = _elapsed(delta)
    found = TopJob(
        job=job,
        user=delta.user if job else "",
        name=environment.name,
        partition=environment.partition,
        cpus=cpus if job else None,
        cores=cores,
        cpu=cpu,
        processes=len(processes),
        threads=sum(1 + process.num_threads for process in processes),
        memory=_memory(processes, known),
        memory_limit=known.mem_limit if known is not None else None,
        peak=known.mem_peak if known is not None else None,
        charged=known.mem_used if known is not None else None,
        cache=known.mem_file if known is not None else None,
        oom_kills=known.oom_kills or 0 if known is not None else 0,
        pressure=(
            _rate(delta, "pressure_cpu", 1e-4),
            _rate(delta, "pressure_memory", 1e-4),
            _rate(delta, "pressure_io", 1e-4),
        ),
        gpus=tuple(card.index for card in cards),
        gpu=sum(reported) / len(reported) if reported else None,
        gpu_memory=sum(card.memory for card in cards) if cards else None,
        power=sum(card.power for card in cards) if cards else None,
        read=read,
        written=written,
        elapsed=elapsed if job else None,
        time_limit=_limit(environment) if job else None,
        history=tuple(delta.history),
        watched=delta.watched,
    )
    return structs.replace(found, notes=find_notes(found, cards))


def _count_cores(processes: list[Process], delta: JobDelta) -> float:
    """Return the cores in use, from the control group, else from the sum over processes.

    Only the control group includes processes that have ended.
    """
    used = _rate(delta, "cpu_time", 1e-9)
    if used is not None:
        return used
    return sum(process.cpu_util for process in processes) / 100


def _rate(delta: JobDelta, field: str, scale: float) -> float | None:
    """Return the delta of a counter per second; None without two readings of the same groups."""
    if delta.before is None or delta.counters is None or not delta.seconds:
        return None
    if not delta.counters.is_continued:
        return None
    old: int | None = getattr(delta.before, field)
    new: int | None = getattr(delta.counters, field)
    if old is None or new is None:
        return None
    return max(0, new - old) * scale / delta.seconds


def _memory(processes: list[Process], known: JobCounters | None) -> float:
    if known is not None and known.mem_rss is not None:
        return known.mem_rss
    return 1024.0 * sum(process.resident_memory for process in processes)


def _elapsed(delta: JobDelta) -> float | None:
    """Return the seconds since the job's start.

    Slurm's start time is used unless it is later than the start of the first process.
    """
    first = None if delta.start is None else max(0.0, delta.uptime - delta.start)
    if delta.environment.start:
        since = delta.time - delta.environment.start
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
