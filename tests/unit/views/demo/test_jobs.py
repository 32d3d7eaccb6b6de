"""The simulated jobs: each verdict has one that gets it, and one that just does not."""

from __future__ import annotations

import asyncio

import pytest

from ccagent.views.demo.jobs import DemoJob, demo_jobs
from ccagent.views.job.rules import RULES, JobReport
from tests.support.page_site import PageSite

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


def test_each_rule_is_shown() -> None:
    rules = {rule.name for rule in RULES} - {"gpu-unknown"}
    shown = {job.shows.removesuffix(" hint") for job in SHOWN}
    assert rules <= shown
    # What has no threshold of its own has no job that just misses it.
    missed = {name.removeprefix("just not ") for name in shown if name.startswith("just not")}
    assert rules - missed == {"unknown", "short"}


def test_no_good_job_needs_advice(reports: dict[str, JobReport]) -> None:
    good = {job.name for job in demo_jobs() if not job.shows} & reports.keys()
    assert len(good) > 30
    assert {name: reports[name].level for name in good} == dict.fromkeys(good, "ok")
