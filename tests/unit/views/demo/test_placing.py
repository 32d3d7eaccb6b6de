"""Placing simulated jobs: nobody gets a core, a card or memory that another one has."""

from __future__ import annotations

from itertools import combinations

from ccagent.views.demo.jobs import FIRST_JOB, demo_jobs
from ccagent.views.demo.placing import demo_nodes, place_jobs

NOW = 1_800_000_000


def test_jobs_that_overlap_share_neither_cores_nor_cards() -> None:
    placed = place_jobs(demo_jobs(), demo_nodes(), NOW, FIRST_JOB)
    for one, other in combinations(placed, 2):
        if one.start >= (other.stop or NOW) or other.start >= (one.stop or NOW):
            continue
        for part in one.parts:
            for there in other.parts:
                if part.node == there.node:
                    assert not set(part.cores) & set(there.cores)
                    assert not set(part.cards) & set(there.cards)


def test_all_jobs_that_show_a_verdict_find_a_place() -> None:
    placed = {one.job.name for one in place_jobs(demo_jobs(), demo_nodes(), NOW, FIRST_JOB)}
    assert {job.name for job in demo_jobs() if job.shows} <= placed


def test_a_small_cluster_leaves_jobs_out() -> None:
    placed = place_jobs(demo_jobs(), demo_nodes(4), NOW, FIRST_JOB)
    assert 0 < len(placed) < len(demo_jobs())
