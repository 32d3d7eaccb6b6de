"""Summaries of jobs: kept as long as nothing changes, made node by node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.stores.metrics.job_details import StoredJobDetails
from ccagent.stores.metrics.job_table import StoredJob
from tests.support.page_site import PageSite


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PageSite]:
    found = PageSite(tmp_path, nodes=4, seconds=600, jobs=[])
    yield found
    found.close()


def ended(site: PageSite, ago: int, **details: object) -> StoredJob:
    """Return a job of an hour on two cores, one of them in use."""
    stop = site.now - ago
    chosen = StoredJobDetails(cores=2, **details)  # type: ignore[arg-type]
    return StoredJob("demo", "7", "eve", "completed", stop - 3600, stop, ("n1",), details=chosen)


def write(site: PageSite, job: StoredJob, value: float, minutes: range) -> None:
    for minute in minutes:
        time = job.start + 60 * minute
        site.store.write(("demo", "n1", "job7"), "job_cpu_util", time, value)


def level(site: PageSite, job: StoredJob) -> str:
    return asyncio.run(site.sources.reports.of_job(job)).report.level


def test_accounting_that_comes_late_changes_the_verdict(site: PageSite) -> None:
    job = ended(site, 1000)
    write(site, job, 100.0, range(60))
    assert level(site, job) == "BAD"
    later = job._replace(details=ended(site, 1000, asked_cores=1).details)
    assert level(site, later) == "ok"


@pytest.mark.parametrize(("ago", "expected"), [(1000, "ok"), (8000, "unknown")])
def test_values_that_come_late_count_for_two_hours(site: PageSite, ago: int, expected: str) -> None:
    job = ended(site, ago)
    write(site, job, 190.0, range(30))
    assert level(site, job) == "unknown"
    write(site, job, 190.0, range(30, 60))
    site.now += 700
    assert level(site, job) == expected


def test_others_get_their_turn_while_a_large_job_is_measured(site: PageSite) -> None:
    job = ended(site, 0)._replace(nodes=tuple(f"n{number}" for number in range(800)))
    turns = 0

    async def look() -> None:
        nonlocal turns
        making = asyncio.create_task(site.sources.reports.of_job(job))
        while not making.done():
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(look())
    assert turns > 90


def test_values_that_no_machine_can_have_are_unknown(site: PageSite) -> None:
    job = ended(site, 0)
    write(site, job, 1e300, range(60))
    summary = asyncio.run(site.sources.reports.of_job(job))
    assert summary.report.efficiency.cpu is None
