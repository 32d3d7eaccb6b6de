"""Simulated jobs, and their placement: per verdict a job that gets it and a job just below it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

Shape = Literal["steady", "starts-only", "stops", "fades", "waves", "grows"]

FIRST_JOB = 4711001
MIB = float(1 << 20)
NODE_CORES = 64
CPU_MEMORY, GPU_MEMORY, CARD_MEMORY = 256, 512, 80
"""Memory of nodes without and with GPUs, and of a card, in GB (1024^3)."""

CARDS = ("00000000:17:00.0", "00000000:65:00.0", "00000000:CA:00.0", "00000000:E3:00.0")


class DemoMount(NamedTuple):
    """I/O of a job on a mount of a node: B/s, calls per second, metadata operations per second."""

    point: str
    type: str
    source: str
    read: float
    written: float
    calls: float
    metadata: float


HOME = DemoMount("/home", "nfs4", "nfs1:/export/home", 2e4, 5e3, 4, 30)
SCRATCH = DemoMount(
    "/scratch", "lustre", "10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch", 48 * MIB, 21 * MIB, 90, 7
)
SMALL_FILES = DemoMount(
    "/scratch", "lustre", "10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch", 3 * MIB, 3 * MIB, 700, 2600
)
LOCAL = DemoMount("/tmp", "xfs", "/dev/nvme0n1p2", 3e5, 2 * MIB, 40, 12)


class DemoJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the simulated cluster. All amounts are of one node.

    began: hours before now. hours: run time, None: still running. limit: hours. memory: requested
    GB (1024^3). cpu: share of the cores in use; a tuple: by node. rss, cache: shares of the memory
    used by programs and by the page cache. gpu: percent by card, None: not reported. sms: share of
    busy SMs while a card is used. kept: share
    of the samples that arrived. shows: the verdict that the job demonstrates. mounts: its file
    systems, if agents report them.
    """

    name: str
    user: str
    account: str
    shows: str = ""
    partition: str = "normal"
    nodes: int = 1
    cores: int = 8
    memory: float = 32.0
    began: float
    hours: float | None = None
    limit: float = 12.0
    state: str = "COMPLETED"
    exit_code: int = 0
    cpu: float | tuple[float, ...] = 0.95
    shape: Shape = "steady"
    rss: float = 0.78
    cache: float = 0.05
    pressure: float = 0.3
    oom_kills: int = 0
    threads: float = 1.0
    gpu: tuple[float | None, ...] = ()
    gpu_memory: float = 0.5
    sms: float = 0.7
    kept: float = 1.0
    is_exclusive: bool = False
    mounts: tuple[DemoMount, ...] = ()


def _job(names: str, began: float, hours: float | None, limit: float, **more: Any) -> DemoJob:
    """Return a job. names: name, user, account, and the verdict that the job demonstrates."""
    name, user, account, shows = names.split(" ", 3)
    return DemoJob(
        name=name, user=user, account=account, shows=shows, began=began, hours=hours, limit=limit,
        **more,
    )  # fmt: skip


def _gpu_job(
    names: str, began: float, hours: float | None, limit: float, cpu: float, *,
    gpu: tuple[float | None, ...], cores: int = 16, memory: float = 120, **more: Any,
) -> DemoJob:  # fmt: skip
    """Return a job in the partition `gpu`."""
    more |= {"partition": "gpu", "cores": cores, "memory": memory, "cpu": cpu, "gpu": gpu}
    return _job(names, began, hours, limit, **more)


def demo_jobs() -> list[DemoJob]:
    """Return the jobs of a day. Jobs that demonstrate a verdict come first."""
    return [
        _job("relax.sh alice phys ok", 3.4, 3.21, 4, nodes=2, cores=32, memory=120,
             mounts=(SCRATCH, HOME)),
        _gpu_job("train.py bob ml gpu-idle", 2.08, None, 24, 0.4, gpu=(42, 0),
                 mounts=(SCRATCH, LOCAL, HOME)),
        _gpu_job("train-2.py bob ml just not gpu-idle", 5, 4.3, 6, 0.5, gpu=(61, 30)),
        _gpu_job("stalled.py kim ml gpu-idle", 6.2, None, 24, 0.3, gpu=(83,), shape="starts-only"),
        _gpu_job("infer kim ml gpu-low", 7, 5.1, 8, 0.6, gpu=(11,), gpu_memory=0.2),
        _gpu_job("tune kim ml gpu-low hint", 9, 6.4, 8, 0.7, gpu=(21,)),
        _gpu_job("tune-large kim ml just not gpu-low", 9, 6.2, 8, 0.7, gpu=(27,), gpu_memory=0.7),
        _gpu_job("tiny-batch kim ml gpu-few-sms hint", 13, 4, 5, 0.7, gpu=(93,), sms=0.06),
        _gpu_job("small-batch kim ml just not gpu-few-sms", 18, 4, 5, 0.7, gpu=(93,), sms=0.3),
        _job("mpi-split dave chem idle-nodes", 4, 3.4, 4, nodes=2, cores=32, memory=96,
             cpu=(0.96, 0.0)),
        _job("mpi-pair dave chem just not idle-nodes", 8, 3.2, 4, nodes=2, cores=32, memory=96,
             cpu=(0.97, 0.92)),
        _job("pipeline carol bio cpu-low", 10, 5.5, 8, cores=16, cpu=0.38),
        _job("mapper carol bio cpu-low hint", 12, 6, 8, cores=16, cpu=0.73),
        _job("mapper-2 carol bio just not cpu-low", 14, 6, 8, cores=16, cpu=0.83),
        _job("fit dave stat serial", 9, 5, 6, cores=16, cpu=0.0618, rss=0.81),
        _job("fit-threads dave stat just not serial", 15, 5, 6, cores=16, cpu=0.09, rss=0.81),
        _job("assemble carol bio mem-limit", 1.5, 0.685, 8, cores=16, cpu=0.71, shape="grows",
             rss=0.994, cache=0.006, oom_kills=3, pressure=4, state="OUT_OF_MEMORY", exit_code=125),
        _job("matrix erin phys mem-limit hint", 6, 4, 6, memory=64, rss=0.93),
        _job("reclaim erin phys mem-pressure hint", 11, 4, 6, memory=16, rss=0.86, cache=0.13,
             pressure=24),
        _job("matrix-2 erin phys just not mem-limit", 16, 4, 6, memory=64, rss=0.86, cache=0.02),
        _job("convert frank geo mem-excess", 5, 3, 4, memory=180, rss=0.04, cache=0.7),
        _job("gridder frank geo mem-excess hint", 9, 3, 4, memory=100, rss=0.45, cache=0.3),
        _job("gridder-2 frank geo just not mem-excess", 13, 3, 4, memory=100, rss=0.74, cache=0.2),
        _job("solver grace chem time", 12.5, 6, 6, cores=32, memory=96, state="TIMEOUT"),
        _job("quick grace chem time", 3, 1.2, 24, cores=32, memory=96),
        _job("guess grace chem time hint", 18, 5, 12, cores=32, memory=96),
        _job("planned grace chem just not time", 22, 5, 7.5, cores=32, memory=96),
        _job("omp-too-many heidi geo oversubscribed", 4, None, 12, cores=64, memory=200,
             threads=2.6, is_exclusive=True),
        _job("omp-right heidi geo just not oversubscribed", 4, None, 12, cores=64, memory=200,
             threads=1.1, is_exclusive=True),
        _job("scatter ivan stat fragmented", 7, 4, 6, nodes=4, cores=4, memory=16),
        _job("whole ivan stat just not fragmented", 7, 4, 6, nodes=2, cores=40, memory=120),
        _gpu_job("loader judy ml gpu-share", 8, 4, 6, 0.85, gpu=(74,), cores=32),
        _gpu_job("loader-2 judy ml just not gpu-share", 13, 4, 6, 0.85, gpu=(77,), cores=20,
                 memory=100),
        _job("ensemble mallory geo ended-early", 8, 6, 8, cores=32, memory=96, shape="stops",
             cpu=0.99),
        _job("ensemble-2 mallory geo just not ended-early", 15, 6, 8, cores=32, memory=96,
             shape="fades", cpu=0.99),
        _job("test.sh alice phys short", 0.9, 0.011, 1, cores=2, memory=4, state="FAILED",
             exit_code=1),
        _job("lossy alice phys unknown", 10, 4, 6, cores=16, cpu=0.3, kept=0.7),
        _gpu_job("mig judy ml unknown", 3, None, 12, 0.95, gpu=(None,), cores=8, memory=48),
        _job("mpi-stuck dave chem cpu-zero", 6, 4.4, 6, cores=8, cpu=0.0),
        _job("unpack carol bio wait-metadata", 9, 5, 6, cores=8, cpu=0.06, mounts=(SMALL_FILES,)),
        _job("sys/dashboard/sys/jupyter heidi geo session", 5, None, 8, cores=4, memory=8, cpu=0.0),
        *_good_jobs(),
    ]  # fmt: skip


def _good_jobs() -> list[DemoJob]:
    """Return jobs without findings that fill the cluster."""
    found: list[DemoJob] = []
    people = ("alice phys", "erin phys", "grace chem", "carol bio", "frank geo")
    for n in range(80):
        kind, hours, began = n % 5, 2.5 + n * 7 % 11 / 2, 23.5 - n * 13 % 23
        found.append(_job(
            f"{('md', 'cfd', 'qm', 'align', 'climate')[kind]}-{n:02} {people[kind]} ", began,
            None if began < hours + 0.5 else hours, round(hours * 1.2, 1),
            nodes=(1, 1, 2, 1, 3)[kind], cores=(16, 32, 64, 24, 64)[kind],
            memory=(48, 96, 200, 64, 220)[kind], cpu=0.9 + n % 7 / 100, rss=0.72 + n % 9 / 80,
            shape=("steady", "waves")[n % 2],
        ))  # fmt: skip
    for n in range(24):
        hours, began = 4.0 + n % 4, 22.0 - 2.5 * n % 21
        found.append(_gpu_job(
            f"llm-{n} {('judy', 'bob')[n % 2]} ml ", began,
            None if began < hours + 0.5 else hours, hours * 1.2, 0.86, gpu=(88.0, 91.0),
            cores=32, memory=200, gpu_memory=0.85, rss=0.74,
        ))  # fmt: skip
    return found


class DemoNode(NamedTuple):
    """A node and the addresses of its cards. memory: GB (1024^3)."""

    name: str
    memory: int
    cards: tuple[str, ...]


class PlacedPart(NamedTuple):
    """The part of a node that is allocated to a job."""

    node: DemoNode
    cores: tuple[int, ...]
    cards: tuple[int, ...]


class PlacedJob(NamedTuple):
    """A job with number, nodes, and times in seconds since 1970. stop: None: still running."""

    number: int
    job: DemoJob
    start: int
    stop: int | None
    parts: tuple[PlacedPart, ...]


def demo_nodes(count: int = 32) -> list[DemoNode]:
    """Return the nodes. A quarter of them has GPUs."""
    with_cards = count // 4
    plain = [DemoNode(f"c{n:03}", CPU_MEMORY, ()) for n in range(1, count - with_cards + 1)]
    return plain + [DemoNode(f"g{n:03}", GPU_MEMORY, CARDS) for n in range(1, with_cards + 1)]


def place_jobs(jobs: Sequence[DemoJob], nodes: Sequence[DemoNode], now: int) -> list[PlacedJob]:
    """Place each job on the first nodes with enough free resources, else omit the job."""
    placed: list[PlacedJob] = []
    for number, job in enumerate(jobs, FIRST_JOB):
        start = now - int(job.began * 3600)
        stop = None if job.hours is None else start + int(job.hours * 3600)
        others = [
            other
            for other in placed
            if other.start < (now + 12 * 3600 if stop is None else stop)
            and start < (now + 12 * 3600 if other.stop is None else other.stop)
        ]
        rooms = (_find_room(job, node, others) for node in nodes)
        parts = tuple(islice(filter(None, rooms), job.nodes))
        if len(parts) == job.nodes:
            placed.append(PlacedJob(number, job, start, stop, parts))
    return placed


def _find_room(job: DemoJob, node: DemoNode, others: Sequence[PlacedJob]) -> PlacedPart | None:
    """Return the free cores and cards of a node for a job; None if it has too few."""
    if bool(node.cards) != bool(job.gpu):
        return None
    used = [(other.job, part) for other in others for part in other.parts if part.node is node]
    cores = {core for _, part in used for core in part.cores}
    cards = {card for _, part in used for card in part.cards}
    free = [core for core in range(NODE_CORES) if core not in cores][: job.cores]
    free_cards = [card for card in range(len(node.cards)) if card not in cards][: len(job.gpu)]
    memory = sum(other.memory for other, _ in used) + job.memory
    if len(free) < job.cores or len(free_cards) < len(job.gpu) or memory > node.memory:
        return None
    return PlacedPart(node, tuple(free), tuple(free_cards))
