"""Measured figures of a job: what reports and verdicts are computed from.

None stands for unknown, which is not 0. Memory in bytes, time in seconds, shares in percent.
"""

from __future__ import annotations

import msgspec


class CardFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that a job had on a node.

    utilization: mean over the samples, peak_utilization: the highest; None: not reported, as
    with MIG. idle_at_end: seconds up to the end in which each sample was 0. samples: those with a
    utilization; coverage: percent of those expected, None: not known. memory_peak: the most in use
    at a sample.
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

    cores, memory_limit: what the job may use here. cpu_seconds: used so far. memory_peak: the most
    that its programs held, anonymous and shared; memory_charged: the most that counted towards the
    limit, page cache included. memory_pressure: mean share of time in which a task waited for
    memory. running_threads, load: means. cores_first, cores_last: mean cores in use in the first
    and the last third of the time. samples: those of the job here. total_*: what the node has.
    io_read, io_written: B in all.
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

    state: in Slurm's words, upper case. start, stop: seconds since 1970; stop: None while it runs.
    elapsed: up to now or its end. time_limit: None: none, or not known. gpus: 0 for a job without,
    None: not known. has_gpu_share: parts of GPUs. asked_cores: Slurm may give more, such as both
    threads of a core. period: seconds between samples; 0: not known. expected_samples: of a node.
    accounted_cpu_seconds: of Slurm's accounting, after the end.
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
        """Return whether the job has not ended."""
        return self.stop is None

    @property
    def cards(self) -> list[tuple[NodeFigures, CardFigures]]:
        """Return all cards with their nodes."""
        return [(node, card) for node in self.nodes for card in node.cards]

    @property
    def gpu_count(self) -> int | None:
        """Return the number of GPUs; None: not known."""
        return len(self.cards) or self.gpus

    @property
    def samples(self) -> int:
        """Return the samples of the node that has most."""
        return max((node.samples for node in self.nodes), default=0)

    @property
    def coverage(self) -> float | None:
        """Return how many of the expected samples of all nodes there are, in percent."""
        expected = self.expected_samples * len(self.nodes)
        if not expected:
            return None
        found = sum(min(node.samples, self.expected_samples) for node in self.nodes)
        return 100.0 * found / expected
