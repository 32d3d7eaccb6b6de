"""Figures of a job on this node, from its control group and the running daemon."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import structs

from ccagent.agents.jobio.usage import read_totals
from ccagent.config.settings import as_table
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.machine.bpf import pins
from ccagent.machine.cgroup.counters import JobCounters
from ccagent.machine.node import Node
from ccagent.machine.rdma import read_job_rdma, sum_job_rdma
from ccagent.stores.metrics.usage.table import UsageSum
from ccagent.views.job.figures import CardFigures, JobFigures, NodeFigures
from ccagent.views.job.mounts import JobMount, JobMounts, JobNetwork
from ccagent.views.top.reader import IO_COUNTS, NodeReader, explain_mounts

if TYPE_CHECKING:
    from ccagent.views.top.snapshot import TopJob, TopSnapshot

T = TypeVar("T")

STATUS_SOCKET = "/run/ccagent/status.sock"
"""The status socket of a packaged daemon."""


class KeptJob(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a running job from the daemon's agent `metrics`.

    since, last: first and last sample in seconds since 1970. memory_peak: maximum of its programs'
    memory at a sample in B.
    """

    since: float
    last: float
    samples: int
    memory_peak: int | None = None


class KeptEnergy(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of a running job on this node in J with its interval, from the agent `energy`.

    coverage: share of its time with a known energy.
    """

    joules: float
    least: float
    most: float
    coverage: float


def measure_here(job: int, socket: str = STATUS_SOCKET, node: Node | None = None) -> JobFigures:
    """Return the figures of a job. Raise ConfigurationError if the job does not run here."""
    node = node or Node()
    reader = NodeReader(node)
    try:
        reader.begin()
        time.sleep(0.2)
        snapshot = reader.read()
        counters = reader.counters_of(job)
    finally:
        reader.close()
    found = next((one for one in snapshot.jobs if one.job == job and job), None)
    if found is None:
        raise ConfigurationError(
            f"job {job}: does not run on this node ({node.hostname}); name a store with --store URL"
        )
    return make_figures(found, snapshot, counters, *ask_daemon(job, socket))


def ask_daemon(job: int, socket: str) -> tuple[KeptJob | None, KeptEnergy | None]:
    """Return the running daemon's figures of a job, None: unknown.

    They are unknown if this user may not query the daemon.
    """
    if not os.path.exists(socket):
        return None, None
    from ccagent.service.status_socket import read_status

    try:
        details = read_status(socket).details
    except CcagentError:
        return None, None
    return (
        _convert(details, "metrics", "jobs", job, KeptJob),
        _convert(details, "energy", "accounts", job, KeptEnergy),
    )


def _convert(details: dict[str, Any], agent: str, key: str, job: int, kind: type[T]) -> T | None:
    kept: Any = as_table(as_table(details.get(agent)).get(key)).get(str(job))
    try:
        return None if kept is None else msgspec.convert(kept, kind)
    except msgspec.ValidationError:
        return None


def make_figures(
    job: TopJob,
    snapshot: TopSnapshot,
    counters: JobCounters | None,
    kept: KeptJob | None,
    energy: KeptEnergy | None = None,
) -> JobFigures:
    """Return the figures of a running job on this node. Those of other nodes are unknown.

    Counters of its control group cover its whole run time. Peaks are from the daemon's samples.
    """
    elapsed = job.elapsed or 0.0
    known = counters or JobCounters()
    cpu_time, waited = known.cpu_time, known.pressure_memory
    peaks = [job.memory, *([kept.memory_peak] if kept and kept.memory_peak else [])]
    cards = tuple(
        CardFigures(
            card=str(card.index),
            memory_peak=float(card.memory),
            memory_total=100.0 * card.memory / card.memory_percent if card.memory_percent else None,
        )
        for card in snapshot.cards
        if card.index in job.gpus
    )
    node = NodeFigures(
        name=snapshot.node,
        cores=job.cpus,
        cpu_seconds=None if cpu_time is None else cpu_time / 1e9,
        memory_limit=job.memory_limit,
        memory_peak=max(peaks),
        memory_charged=job.peak if job.peak is not None else job.charged,
        memory_pressure=None if waited is None or not elapsed else waited / 1e4 / elapsed,
        oom_kills=known.oom_kills,
        samples=kept.samples if kept is not None else 2,
        total_cores=float(len(snapshot.cpus)) or None,
        total_memory=snapshot.memory_total or None,
        total_cards=len(snapshot.cards) or None,
        io_read=None if known.io_read is None else float(known.io_read),
        io_written=None if known.io_write is None else float(known.io_write),
        cards=cards,
    )
    usage = None
    if energy is not None:
        fields = structs.asdict(energy)
        usage = UsageSum(key=str(job.job), jobs=1, measured=1, bounded=1, **fields)
    return JobFigures(
        job=str(job.job),
        cluster=snapshot.cluster,
        user=job.user,
        name=job.name,
        partition=job.partition,
        state="RUNNING",
        start=int(snapshot.time - elapsed),
        elapsed=elapsed,
        time_limit=job.time_limit,
        gpus=len(job.gpus),
        usage=usage,
        nodes=(node,),
    )


def read_mounts(node: Node, job: int, directory: str = pins.DIRECTORY) -> JobMounts:
    """Return a job's I/O by mount and network, since the kernel programs count it, and its RDMA."""
    rdma = read_rdma(node, job)
    try:
        uses, traffic, _ = read_totals(node, directory, job)
    except CcagentError as error:
        return JobMounts(note=explain_mounts(error), rdma=rdma)
    mounts = (
        JobMount(
            point=use.mount.point,
            type=use.mount.type,
            source=use.mount.source,
            **{name: count(use.total) for name, count in IO_COUNTS.items()},
            busy=(use.total.read_ns + use.total.write_ns) / 1e9 or None,
        )
        for use in uses
    )
    network = (
        JobNetwork(
            protocol=use.protocol,
            is_loopback=use.is_loopback,
            received=use.total.received_bytes,
            sent=use.total.sent_bytes,
        )
        for use in traffic
    )
    return JobMounts(mounts=tuple(mounts), network=tuple(network), rdma=rdma)


def read_rdma(node: Node, job: int) -> dict[str, int]:
    """Return the RDMA objects and requests of a job; {} without any, or if they are unknown."""
    try:
        return sum_job_rdma(read_job_rdma(node)).get(job, {})
    except CcagentError:
        return {}
