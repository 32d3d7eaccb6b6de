"""Facts, series, measured figures and efficiency of a job.

None means unknown, never 0. Memory is in bytes, time in seconds, shares in percent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.stores.metrics.job_details import StoredJobDetails
from ccagent.stores.metrics.usage.table import UsageSum
from ccagent.views.amounts import mean_of_known

if TYPE_CHECKING:
    from collections.abc import Iterable


class CardFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a job on a node.

    utilization: mean over the samples; None: not reported, as with MIG.
    idle_at_end: seconds up to the end in which each sample was 0. samples: number of samples with
    a utilization; coverage: percent of the expected samples, None: unknown. memory_peak: maximum
    over the samples.
    """

    card: str
    utilization: float | None = None
    idle_at_end: float = 0.0
    samples: int = 0
    coverage: float | None = None
    memory_peak: float | None = None
    memory_total: float | None = None
    sm_active: float | None = None
    power: float | None = None
    power_limit: float | None = None


class NodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a job, with the job's share of it.

    cores, memory_limit: what the job may use here. cpu_seconds: used so far. memory_peak: maximum
    of its programs' anonymous and shared memory; memory_charged: maximum of the memory that counts
    towards the limit, including page cache. memory_pressure, io_pressure: mean share of time in
    which a task waited for memory, and for block I/O. load: mean. samples: number
    of the job's samples here. total_*: hardware of the node. io_read, io_written: total in B.
    """

    name: str
    cores: float | None = None
    cpu_seconds: float | None = None
    memory_limit: float | None = None
    memory_peak: float | None = None
    memory_charged: float | None = None
    memory_pressure: float | None = None
    io_pressure: float | None = None
    oom_kills: int | None = None
    load: float | None = None
    samples: int = 0
    total_cores: float | None = None
    total_memory: float | None = None
    total_cards: int | None = None
    io_read: float | None = None
    io_written: float | None = None
    cards: tuple[CardFigures, ...] = ()

    @property
    def gpu(self) -> float | None:
        """Return the mean utilization of the cards that report it."""
        return mean_of_known(card.utilization for card in self.cards)


class CoreUse(msgspec.Struct, frozen=True, kw_only=True):
    """Cores that a job used over its time, on all nodes together.

    peak: maximum. high: at most so many in the share `quantile` of the time, so that a job with as
    many takes hardly longer. serial: share of the time with the work of one core, while `high` is
    several; 0 to 1. quiet: seconds before the end with little use: a tenth of `high`, or one core
    of several; quiet_cores: mean in that time. idle: seconds before the end with almost none.
    """

    peak: float
    high: float
    quantile: float = 0.95
    serial: float = 0.0
    quiet: float = 0.0
    quiet_cores: float = 0.0
    idle: float = 0.0


class JobFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A job.

    state: Slurm's state in upper case. start, stop: seconds since 1970; stop: None for a running
    job. elapsed: until now or the end. time_limit: None: no limit, or unknown. gpus: None: unknown.
    has_gpu_share: the job has parts of GPUs. has_terminal: started from a terminal, for example by
    srun; None: unknown. use: None without samples over time. asked_cores: Slurm may allocate more,
    such as both threads of a core. period: seconds between samples; 0: unknown. expected_samples:
    per node. accounted_cpu_seconds: from Slurm's accounting, after the end. usage: energy, CO2 and
    cost.
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
    has_terminal: bool | None = None
    use: CoreUse | None = None
    accounted_cpu_seconds: float | None = None
    usage: UsageSum | None = None
    currency: str = ""
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


LARGEST_VALUE = 1e18
"""Values from this number on are implausible and ignored."""


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the store's table of jobs: user, nodes, times, resources.

    start, stop: seconds since 1970; stop: None for a running job. parts: names of its parts, such
    as mounts, by node. usage: its energy, CO2 and cost; None: unknown.
    """

    job: str
    cluster: str = ""
    user: str = ""
    state: str = ""
    start: int = 0
    stop: int | None = None
    nodes: tuple[str, ...] = ()
    details: StoredJobDetails = StoredJobDetails()
    parts: dict[str, list[str]] = {}
    usage: UsageSum | None = None
    currency: str = ""


class NodeHardware(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware of a node, as far as known. memory: B."""

    cores: float | None = None
    memory: float | None = None
    cards: int | None = None


class JobSeries(msgspec.Struct, frozen=True):
    """Values of a metric of a job on a node, from `start` on, `step` seconds apart.

    metric: ccagent's name. card: the address of a GPU, "" for the job itself. values: None:
    missing; the base units are B, B/s and percent.
    """

    metric: str
    node: str
    card: str
    start: int
    step: int
    values: list[float | None]

    def present(self) -> list[float]:
        """Return the values without the missing ones."""
        return [value for value in self.values if value is not None]


JOB_METRICS = {
    "job_cpu_util": "%", "job_mem_rss": "B", "job_mem_used": "B", "job_mem_peak": "B",
    "job_mem_limit": "B", "job_oom_kills": "", "job_pressure_memory": "%", "job_pressure_io": "%",
    "job_io_read": "B/s", "job_io_write": "B/s", "job_gpu_util": "%", "job_gpus_idle": "",
    "job_gpu_sm_active": "%",
}  # fmt: skip
"""Metrics of a job on a node (`stype=job`), with their base units."""

CARD_METRICS = {
    "acc_utilization": "%", "acc_mem_used": "B", "acc_mem_share": "%", "acc_sm_active": "%",
    "acc_power": "W", "acc_power_limit": "W",
}  # fmt: skip
"""Metrics of a GPU."""

NODE_METRICS = {"cpu_load": ""}
"""Metrics of a node, used for jobs with exclusive nodes."""


class UsedShare(msgspec.Struct, frozen=True):
    """A used part of a total. nodes: number of nodes (of GPUs: cards) that reported both."""

    used: float
    total: float
    nodes: int

    @property
    def percent(self) -> float:
        """Return the share in percent."""
        return 100.0 * self.used / self.total


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of a job; None: unknown.

    cpu: core seconds. memory: B of programs; charged: including page cache; both are sums of the
    nodes' peaks. gpu: percent, summed over the cards that report it. gpu_memory: B. time: s, of the
    limit.
    """

    cpu: UsedShare | None = None
    memory: UsedShare | None = None
    charged: UsedShare | None = None
    gpu: UsedShare | None = None
    gpu_memory: UsedShare | None = None
    time: UsedShare | None = None


def compute_efficiency(job: JobFigures) -> Efficiency:
    """Return the shares of a job. Nodes without a figure are excluded from both of its sums."""
    cards = job.cards
    return Efficiency(
        cpu=_cpu(job),
        memory=_sum((node.memory_peak, node.memory_limit) for node in job.nodes),
        charged=_sum((node.memory_charged, node.memory_limit) for node in job.nodes),
        gpu=_sum((card.utilization, 100.0) for _, card in cards),
        gpu_memory=_sum((card.memory_peak, card.memory_total) for _, card in cards),
        time=_sum([(job.elapsed, job.time_limit)]),
    )


def _cpu(job: JobFigures) -> UsedShare | None:
    """Return the core seconds of the samples; without samples those of Slurm's accounting."""
    found = _sum(
        (node.cpu_seconds, None if node.cores is None else node.cores * job.elapsed)
        for node in job.nodes
    )
    if found is not None or job.accounted_cpu_seconds is None:
        return found
    cores = [node.cores for node in job.nodes]
    known = [one for one in cores if one is not None]
    if not known or len(known) < len(cores):
        return None
    return _sum([(job.accounted_cpu_seconds, sum(known) * job.elapsed)])


def _sum(pairs: Iterable[tuple[float | None, float | None]]) -> UsedShare | None:
    """Return the sums over complete pairs; None if there are none or the total is 0."""
    known = [(used, total) for used, total in pairs if used is not None and total is not None]
    total = sum(total for _, total in known)
    if not known or total <= 0:
        return None
    return UsedShare(sum(used for used, _ in known), total, len(known))
