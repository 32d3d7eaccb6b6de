"""Efficiency of a job: its used shares of the allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.views.job.figures import JobFigures


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
