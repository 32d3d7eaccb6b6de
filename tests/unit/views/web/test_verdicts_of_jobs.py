"""The simulated jobs: a verdict has one that gets it, one that does not; nobody shares a core."""

from __future__ import annotations

import asyncio
from itertools import combinations

import pytest

from ccagent.views.job.rules import RULES, JobReport
from tests.support.page_site import PageSite
from tests.support.simulated_jobs import DemoJob, demo_jobs, demo_nodes, place_jobs

NOW = 1_800_000_000
SHOWN = [job for job in demo_jobs() if job.shows]
NAMES = {
    "unknown": {"unknown", "gpu-unknown"},
}  # fmt: skip


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, JobReport]:
    site = PageSite(tmp_path_factory.mktemp("demo"), nodes=32, seconds=86400)
    found = {
        placed.job.name: asyncio.run(
            site.sources.reports.of_job(site.table.find("", str(placed.number))[0])
        )
        for placed in site.cluster.jobs
    }
    site.close()
    return {name: summary.report for name, summary in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("job", SHOWN, ids=[job.name for job in SHOWN])
def test_a_job_gets_the_verdict_that_it_shows(job: DemoJob, reports: dict[str, JobReport]) -> None:
    shown, report = job, reports[job.name]
    rules = {one.rule for one in report.findings} | {one.rule for one in report.hidden}
    wanted = shown.shows.removeprefix("just not ").removesuffix(" hint")
    if shown.shows.startswith("just not"):
        assert wanted not in rules
    else:
        assert rules & NAMES.get(wanted, {wanted})
    if shown.shows.endswith(" hint"):
        assert report.level == "hint"


def test_each_resource_is_shown() -> None:
    """tests/data/jobs has a job for each rule, and one just below its threshold."""
    resources = {rule.name: rule.resource for rule in RULES}
    shown = {job.shows.removesuffix(" hint").removeprefix("just not ") for job in SHOWN}
    assert {resources[name] for name in shown - {"ok"}} == set(resources.values())


@pytest.mark.slow
def test_no_good_job_needs_advice(reports: dict[str, JobReport]) -> None:
    good = {job.name for job in demo_jobs() if not job.shows} & reports.keys()
    assert len(good) > 30
    assert {name: reports[name].level for name in good} == dict.fromkeys(good, "ok")


def test_jobs_that_overlap_share_neither_cores_nor_cards() -> None:
    placed = place_jobs(demo_jobs(), demo_nodes(), NOW)
    for one, other in combinations(placed, 2):
        if one.start >= (other.stop or NOW) or other.start >= (one.stop or NOW):
            continue
        for part in one.parts:
            for there in other.parts:
                if part.node == there.node:
                    assert not set(part.cores) & set(there.cores)
                    assert not set(part.cards) & set(there.cards)


def test_all_jobs_that_show_a_verdict_find_a_place() -> None:
    placed = {one.job.name for one in place_jobs(demo_jobs(), demo_nodes(), NOW)}
    assert {job.name for job in demo_jobs() if job.shows} <= placed


def test_a_small_cluster_leaves_jobs_out() -> None:
    placed = place_jobs(demo_jobs(), demo_nodes(4), NOW)
    assert 0 < len(placed) < len(demo_jobs())
