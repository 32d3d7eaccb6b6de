"""Searching the table of jobs: texts are texts, whatever they hold."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.stores.metrics.job_details import StoredJobDetails
from ccagent.stores.metrics.job_table import JobTable, StoredJob
from ccagent.views.web.data.job_search import JobFilter, JobSearch, JobSearchError

HOSTILE = "x' or 1=1; drop table jobs; --"


def job(
    number: str,
    user: str = "eve",
    *,
    start: int = 100,
    stop: int | None = 200,
    name: str = "a",
    nodes: tuple[str, ...] = ("n1",),
    state: str = "completed",
) -> StoredJob:
    details = StoredJobDetails(name=name, account="phys")
    return StoredJob("fox", number, user, state, start, stop, nodes, details=details)


@pytest.fixture
def search(tmp_path: Path) -> Iterator[JobSearch]:
    path = str(tmp_path / "jobs.sqlite")
    table = JobTable(path)
    for one in (
        job("1"), job("2", "bob", start=150, stop=None, state="running", nodes=("n1", "n2")),
        job("3", start=300, stop=400, state="timeout", name="50%_off"),
        job("4", HOSTILE, name=HOSTILE),
    ):  # fmt: skip
        table.start(one)
    found = JobSearch(path)
    yield found
    found.close()
    table.close()


def numbers(search: JobSearch, wanted: JobFilter) -> list[str]:
    return [one.job for one in asyncio.run(search.find(wanted))]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (JobFilter("fox"), ["3", "2", "4", "1"]),
        (JobFilter("other"), []),
        (JobFilter("fox", 250, 500), ["3", "2"]),
        (JobFilter("fox", state="running"), ["2"]),
        (JobFilter("fox", state="timeout"), ["3"]),
        (JobFilter("fox", user="bob"), ["2"]),
        (JobFilter("fox", node="n2"), ["2"]),
        (JobFilter("fox", text="n2"), ["2"]),
        (JobFilter("fox", text="1"), ["4", "1"]),
        (JobFilter("fox", text="50%_"), ["3"]),
        (JobFilter("fox", text="%"), ["3"]),
        (JobFilter("fox", text="_"), ["3"]),
        (JobFilter("fox", text=HOSTILE), ["4"]),
        (JobFilter("fox", user=HOSTILE), ["4"]),
        (JobFilter(HOSTILE), []),
        (JobFilter("fox", state=HOSTILE), []),
        (JobFilter("fox", text="\0"), []),
        (JobFilter("fox", text='n1", "n2'), []),
    ],
)
def test_filters(search: JobSearch, wanted: JobFilter, found: list[str]) -> None:
    assert numbers(search, wanted) == found
    assert asyncio.run(search.count(wanted)) == len(found)


def test_pages_of_a_list(search: JobSearch) -> None:
    pages = [asyncio.run(search.find(JobFilter("fox"), 2, skip)) for skip in (0, 2, 4)]
    assert [[one.job for one in page] for page in pages] == [["3", "2"], ["4", "1"], []]


def test_a_search_never_writes(search: JobSearch) -> None:
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        search._database.execute("delete from jobs")


def test_a_number_that_no_table_holds_is_an_error_for_people(search: JobSearch) -> None:
    with pytest.raises(JobSearchError, match="can't be read"):
        asyncio.run(search.find(JobFilter("fox", start=2**80)))


def test_a_search_that_takes_too_long_is_given_up(
    search: JobSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccagent.views.web.data.job_search._SECONDS", -1.0)
    search._database.set_progress_handler(search._is_late, 1)
    with pytest.raises(JobSearchError, match="too long"):
        asyncio.run(search.find(JobFilter("fox", text="n1")))


def test_a_person_without_a_name_has_no_jobs(tmp_path: Path, search: JobSearch) -> None:
    table = JobTable(str(tmp_path / "jobs.sqlite"))
    table.start(job("5", ""))
    assert numbers(search, JobFilter("fox", user="")) == []
    assert "5" in numbers(search, JobFilter("fox"))
    table.close()


def test_what_runs_is_summed_over_all_jobs(tmp_path: Path, search: JobSearch) -> None:
    table = JobTable(str(tmp_path / "jobs.sqlite"))
    details = StoredJobDetails(account="phys", cores=2, memory=1 << 30, gpus=1)
    for number in range(1000):
        nodes = (f"c{number}",)
        table.start(
            StoredJob("big", f"{number}", "eve", "running", 100, None, nodes, details=details)
        )
    table.start(StoredJob("big", "1000", "bob", "running", 100, None, ()))
    assert asyncio.run(search.running_use("big")) == [
        ("bob", "", 1, 0, 0, 0), ("eve", "phys", 1000, 2000, 1000 << 30, 1000),
    ]  # fmt: skip
    assert len(asyncio.run(search.busy_nodes("big"))) == 1000
    table.close()
