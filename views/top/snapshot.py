"""One look at a node: what `ccagent top` shows of a moment."""

from __future__ import annotations

import msgspec


class TopProcess(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A process. cpu: percent of one core. memory: B, anonymous.

    read, written: B/s of calls; None: this user may not know. gpus: indices of cards.
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
    """A card. utilization: percent, None: not reported. memory: B in use. job: 0: of none known.

    idle: seconds for which each reading was 0, up to now.
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
    """What a job does on a mount. job: 0: all processes that belong to none.

    read, written: B/s. reads, writes: calls and requests a second; metadata: operations a second,
    such as open, stat and unlink.
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
        """Return the B/s in both directions."""
        return self.read + self.written

    @property
    def operations(self) -> float:
        """Return the operations of all kinds a second."""
        return self.reads + self.writes + self.metadata


class TopJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job on this node; job 0: all processes that belong to none.

    cpus: hwthreads that it may use. cores: cores in use; cpu: percent of cpus. memory: B that its
    programs hold; charged: with page cache. pressure: percent of time in which a task waited, for
    CPU, memory, I/O. history: cpu of the last readings. watched: seconds since the first reading.
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

    memory_used, memory_total: B. hidden: what this user can't see, a sentence each.
    mounts_note: why mounts are not known, or not in full.
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
