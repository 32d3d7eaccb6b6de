"""Measured figures of a job, the input of reports and verdicts.

None means unknown, never 0. Memory is in bytes, time in seconds, shares in percent.
"""

from __future__ import annotations

import msgspec


class CardFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a job on a node.

    utilization: mean over the samples; peak_utilization: maximum; None: not reported, as with MIG.
    idle_at_end: seconds up to the end in which each sample was 0. samples: number of samples with
    a utilization; coverage: percent of the expected samples, None: unknown. memory_peak: maximum
    over the samples.
    """

    card: str
    utilization: float | None = None
    peak_utilization: float | None = None
    idle_at_end: float = 0.0
    samples: int = 0
    coverage: float | None = None
    memory_peak: float | None = None
    memory_total: float | None = None


class NodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a job, with the job's share of it.

    cores, memory_limit: what the job may use here. cpu_seconds: used so far. memory_peak: maximum
    of its programs' anonymous and shared memory; memory_charged: maximum of the memory that counts
    towards the limit, including page cache. memory_pressure: mean share of time in which a task
    waited for memory. running_threads, load: means. cores_first, cores_last: mean cores in use in
    the first and the last third of the time. samples: number of the job's samples here. total_*:
    hardware of the node. io_read, io_written: total in B.
    """

    name: str
    cores: float | None = None
    cpu_seconds: float | None = None
    memory_limit: float | None = None
    memory_peak: float | None = None
    memory_charged: float | None = None
    memory_pressure: float | None = None
    oom_kills: int | None = None
    running_threads: float | None = None
    load: float | None = None
    cores_first: float | None = None
    cores_last: float | None = None
    samples: int = 0
    total_cores: float | None = None
    total_memory: float | None = None
    total_cards: int | None = None
    io_read: float | None = None
    io_written: float | None = None
    cards: tuple[CardFigures, ...] = ()


class JobFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A job.

    state: Slurm's state in upper case. start, stop: seconds since 1970; stop: None for a running
    job. elapsed: until now or the end. time_limit: None: no limit, or unknown. gpus: None: unknown.
    has_gpu_share: the job has parts of GPUs. asked_cores: Slurm may allocate more, such as both
    threads of a core. period: seconds between samples; 0: unknown. expected_samples: per node.
    accounted_cpu_seconds: from Slurm's accounting, after the end.
    """

    job: str
    cluster: str = ""
    user: str = ""
    account: str = ""
    name: str = ""
    partition: str = ""
    state: str = ""
    exit_code: int | None = None
    start: int = 0
    stop: int | None = None
    elapsed: float = 0.0
    time_limit: float | None = None
    gpus: int | None = None
    asked_cores: int | None = None
    period: float = 0.0
    expected_samples: int = 0
    is_exclusive: bool | None = None
    has_gpu_share: bool = False
    accounted_cpu_seconds: float | None = None
    nodes: tuple[NodeFigures, ...] = ()

    @property
    def is_running(self) -> bool:
        """Return whether the job is still running."""
        return self.stop is None

    @property
    def cards(self) -> list[tuple[NodeFigures, CardFigures]]:
        """Return all cards with their nodes."""
        return [(node, card) for node in self.nodes for card in node.cards]

    @property
    def gpu_count(self) -> int | None:
        """Return the number of GPUs; None if unknown."""
        return len(self.cards) or self.gpus

    @property
    def samples(self) -> int:
        """Return the maximum number of samples of a node."""
        return max((node.samples for node in self.nodes), default=0)

    @property
    def coverage(self) -> float | None:
        """Return the percentage of expected samples that exist, over all nodes."""
        expected = self.expected_samples * len(self.nodes)
        if not expected:
            return None
        found = sum(min(node.samples, self.expected_samples) for node in self.nodes)
        return 100.0 * found / expected
