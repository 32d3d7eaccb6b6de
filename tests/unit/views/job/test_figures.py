"""Efficiency: denominators, unknown parts, sums over nodes."""

from __future__ import annotations

from ccagent.views.amounts import GB
from ccagent.views.job.figures import UsedShare, compute_efficiency
from tests.unit.views.job.support import HOUR, card, job, node


def test_cpu_is_of_all_cores_for_all_the_time() -> None:
    found = compute_efficiency(job(node(), node("n2", cpu_seconds=0.0)))
    assert found.cpu == UsedShare(0.95 * 16 * 2 * HOUR, 2 * 16 * 2 * HOUR, 2)
    assert found.cpu is not None
    assert found.cpu.percent == 47.5


def test_memory_adds_the_peaks_of_the_nodes() -> None:
    found = compute_efficiency(job(node(), node("n2", memory_peak=30 * GB)))
    assert found.memory == UsedShare(80 * GB, 128 * GB, 2)
    assert found.charged == UsedShare(120 * GB, 128 * GB, 2)


def test_nodes_that_told_nothing_are_in_no_sum() -> None:
    silent = node("n2", cpu_seconds=None, memory_peak=None, memory_charged=None)
    found = compute_efficiency(job(node(), silent))
    assert found.cpu == UsedShare(0.95 * 16 * 2 * HOUR, 16 * 2 * HOUR, 1)
    assert found.memory == UsedShare(50 * GB, 64 * GB, 1)


def test_cards_that_cannot_say_their_use_are_in_no_mean() -> None:
    cards = (card(utilization=40.0), card("1", utilization=0.0), card("2", utilization=None))
    found = compute_efficiency(job(node(cards=cards)))
    assert found.gpu is not None
    assert (found.gpu.percent, found.gpu.nodes) == (20.0, 2)


def test_accounting_counts_where_samples_are_missing() -> None:
    figures = job(node(cpu_seconds=None), accounted_cpu_seconds=16 * HOUR)
    assert compute_efficiency(figures).cpu == UsedShare(16 * HOUR, 16 * 2 * HOUR, 1)


def test_unknown_is_not_zero() -> None:
    figures = job(node(cores=None, memory_limit=None), time_limit=None)
    found = compute_efficiency(figures)
    assert (found.cpu, found.memory, found.time, found.gpu) == (None, None, None, None)
