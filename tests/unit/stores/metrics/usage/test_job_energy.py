"""Energy of a job from the counters of its nodes, and its factor by hour."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ccagent.records.points import encode_tags
from ccagent.stores.metrics.api import ROUTES, StoreApi
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.ingest import LineIngest
from ccagent.stores.metrics.job_details import StoredJobDetails
from ccagent.stores.metrics.job_queries import FootprintKeeper
from ccagent.stores.metrics.job_table import JobTable, StoredJob
from ccagent.stores.metrics.line_keys import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.responses import StoreResponse
from ccagent.stores.metrics.settings import UsageSettings
from ccagent.stores.metrics.store import MetricStore
from ccagent.stores.metrics.tokens import TokenVerifier
from ccagent.stores.metrics.usage.factors import Factors
from ccagent.stores.metrics.usage.job_energy import end_of_values, read_job_use
from ccagent.stores.metrics.usage.keeper import UsageKeeper
from tests.support.page_site import public_key

NOW = 1_800_000_000
HOUR = NOW // 3600
"""NOW is the start of an hour."""
JOB = StoredJob(
    "fox", "7", "eve", "completed", NOW - 5400, NOW - 600, ("n1", "n2"),
    details=StoredJobDetails(account="bio"),
)  # fmt: skip


class Site:
    """A store with a table of jobs and a keeper of usage."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.store = MetricStore(MetricCatalogue({"*": StoredMetric(60, "sum")}), lambda: NOW)
        self.ingest = LineIngest(self.store)
        self.table = JobTable(str(directory / "jobs.sqlite"))
        self.usage = UsageKeeper(UsageSettings(**settings), str(directory))
        self.api = StoreApi(
            self.store,
            self.ingest,
            GroupCommit(None, "write"),
            jobs=self.table,
            usage=self.usage,
            verifier=TokenVerifier(public_key(), lambda: NOW),
        )

    def send(self, metric: str, time: int, value: float, node: str = "n1", **more: str) -> None:
        tags = {"cluster": "fox", "hostname": node, "type": "node", "stype": "job",
                "stype-id": "7", **more}  # fmt: skip
        line = f"{metric}{encode_tags(tags)} value={value} {time}\n"
        assert self.ingest.write(line.encode()).stored == 1

    def end(self, job: StoredJob = JOB) -> None:
        self.table.start(job)
        asyncio.run(FootprintKeeper(self.store, self.table, [job], usage=self.usage).keep())

    def ask(self, path: str, owner: str | None = None) -> Any:
        name = path.partition("/?")[0].encode()
        route = ROUTES[name]._replace(owner=owner)
        answers: list[StoreResponse] = []

        async def send() -> None:
            self.api.respond(route, path.encode(), b"", False, answers.append)
            while not answers:  # noqa: ASYNC110 - the loop itself is what is tested
                await asyncio.sleep(0)

        asyncio.run(send())
        assert isinstance(answers[0].body, bytes)
        return json.loads(answers[0].body)

    def close(self) -> None:
        self.usage.close()
        self.table.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, pue=1.5, price=0.2)
    yield site
    site.close()


def fill(site: Site) -> None:
    """Send counters of two nodes over two hours, with the interval of the first at the end."""
    for ago, joules in ((5340, 60), (3660, 900), (1800, 1800), (600, 2000)):
        site.send("job_energy", NOW - ago, joules, part="cpu", share="active")
    site.send("job_energy", NOW - 600, 500, part="cpu", share="idle")
    site.send("job_energy_least", NOW - 540, 2300)
    site.send("job_energy_most", NOW - 540, 2900)
    site.send("job_energy_cpu_active", NOW - 600, 1000, "n2")


def test_energy_by_part_node_and_hour(site: Site) -> None:
    fill(site)
    found = read_job_use(site.store, JOB, NOW)
    first, second = found["n1"], found["n2"]
    assert first.parts == {("cpu", "active"): 2000, ("cpu", "idle"): 500}
    assert (first.below, first.above) == (200, 400)
    assert second.parts == {("cpu", "active"): 1000}
    assert second.below is None
    # 500 J of 4,800 s, of which 1,800 s are in the first hour; 900 J of the other counter.
    assert first.hours == pytest.approx({HOUR - 2: 900 + 187.5, HOUR - 1: 1100 + 312.5})
    assert sum(first.hours.values()) == pytest.approx(first.joules)


def test_a_job_since_1970_spreads_its_energy_over_a_year(site: Site) -> None:
    fill(site)
    found = read_job_use(site.store, JOB._replace(start=0), NOW)["n1"]
    assert len(found.hours) < 367 * 24
    assert sum(found.hours.values()) == pytest.approx(found.joules)


def test_an_interval_of_huge_energies_has_an_answer(site: Site) -> None:
    fill(site)
    site.send("job_energy_most", NOW - 540, 1e308)
    site.end()
    (job,) = site.ask("/api/job/?job=7&parts=1")
    assert (job["usage"]["joules"], job["usage"]["most"]) == (3500, pytest.approx(1e308))


def test_a_counter_that_starts_again_counts_from_0(site: Site) -> None:
    for time, joules in ((NOW - 6000, 100), (NOW - 5400, 130), (NOW - 1200, 40)):
        site.send("job_energy", time, joules, part="gpu", share="active")
    assert read_job_use(site.store, JOB, NOW)["n1"].joules == 30 + 40


def test_a_requeued_job_ends_where_its_next_run_begins() -> None:
    later = JOB._replace(start=NOW - 500)
    assert end_of_values(JOB, [JOB], NOW) == NOW
    assert end_of_values(JOB, [JOB, later], NOW) == NOW - 500
    assert end_of_values(JOB._replace(stop=None), [JOB], NOW) == NOW + 1


def test_an_ended_job_is_in_the_sums(site: Site) -> None:
    site.usage.factors.file = Factors({HOUR - 2: 100.0, HOUR - 1: 300.0})
    fill(site)
    site.end()
    found = site.ask(f"/api/usage/?by=project&from={NOW - 7200}&to={NOW}")
    (row,) = found["rows"]
    assert (row["key"], row["jobs"], row["measured"], row["bounded"]) == ("bio", 1, 1, 0)
    assert row["joules"] == 3500
    assert (row["least"], row["most"]) == (3300, 3900)
    # Node n2 has sent 1,000 J at the end: 375 J of the first hour.
    weighted = (1087.5 + 375) * 100 + (1412.5 + 625) * 300
    assert row["grams"] == pytest.approx(weighted / 3.6e6 * 1.5)
    assert row["cost"] == pytest.approx(3500 / 3.6e6 * 1.5 * 0.2)
    assert found["total"] == {**row, "key": ""}


def test_a_job_without_energy_is_counted_not_guessed(site: Site) -> None:
    site.end()
    (row,) = site.ask(f"/api/usage/?from={NOW - 7200}&to={NOW}")["rows"]
    assert (row["jobs"], row["measured"], row["joules"]) == (1, 0, 0)
    assert row["grams"] is None
    assert row["cost"] is None
    (job,) = site.ask("/api/job/?job=7&parts=1")
    assert job["usage"] is None


def test_a_job_has_its_usage_before_and_after_it_settles(site: Site) -> None:
    fill(site)
    site.table.start(JOB)
    (before,) = site.ask("/api/job/?job=7&parts=1")
    site.end()
    (after,) = site.ask("/api/job/?job=7&parts=1")
    assert before["usage"]["joules"] == after["usage"]["joules"] == 3500
    assert after["currency"] == "EUR"


def test_others_jobs_are_not_in_a_users_sums(site: Site) -> None:
    fill(site)
    site.end()
    path = f"/api/usage/?by=user&from={NOW - 7200}&to={NOW}"
    assert [row["key"] for row in site.ask(path, "eve")["rows"]] == ["eve"]
    assert site.ask(path, "bob")["rows"] == []
    assert site.ask(f"{path}&user=eve", "bob")["rows"] == []
    assert site.ask(path, "")["rows"] == []


@pytest.mark.parametrize("query", ["by=name", "each=year", "from=x", "to=-1"])
def test_a_bad_question_is_refused(site: Site, query: str) -> None:
    assert "error" in site.ask(f"/api/usage/?{query}")
