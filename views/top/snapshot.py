"""The data of a node at one moment, for `ccagent top`."""

from __future__ import annotations

import msgspec


class TopProcess(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A process. cpu: percent of one core. memory: B, anonymous.

    read, written: B/s of calls; None: hidden from this user. gpus: indices of cards.
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
    def transferred(self) -> float:
        """Return the sum of read and written B/s."""
        return self.read + self.written

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
