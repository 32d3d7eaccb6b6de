"""The data of a node at one moment, for `ccagent top`, and the flags of its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


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
    known = [card.utilization for card in cards if card.utilization is not None]
    if known and job.watched >= _WATCHED and sum(known) / len(known) <= _LOW_GPU:
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
