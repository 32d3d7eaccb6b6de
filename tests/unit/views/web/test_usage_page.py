"""The page of usage: sums by project, user and cluster, and over time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.stores.metrics.job_details import StoredJobDetails
from ccagent.stores.metrics.job_table import StoredJob
from ccagent.stores.metrics.settings import UsageSettings
from ccagent.stores.metrics.usage.job_energy import NodeJobEnergy
from ccagent.stores.metrics.usage.keeper import UsageKeeper
from tests.support.page_site import PageSite, token

KWH = 3.6e6


def bearer(name: str, role: str) -> str:
    return f"Bearer {token(sub=name, roles=[role])}"


STAFF, USER = bearer("ada", "admin"), bearer("eve", "user")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PageSite]:
    site = PageSite(tmp_path, nodes=2, seconds=600, has_key=True)
    usage = site.sources.usage = UsageKeeper(UsageSettings(price=0.2), str(tmp_path))
    for number, (user, project) in enumerate([("eve", "bio"), ("bob", "<b>"), ("eve", "bio")]):
        job = StoredJob(
            "fox", str(number), user, "completed", site.now - 7200, site.now - 86400 * number - 60,
            ("n1",), details=StoredJobDetails(account=project),
        )  # fmt: skip
        uses = {"n1": NodeJobEnergy({("cpu", "idle"): (number + 1) * KWH}, {}, 0.1 * KWH, KWH)}
        usage.table.keep(job, uses, 100.0)
    yield site
    usage.close()
    site.close()


def test_staff_see_all_projects(site: PageSite) -> None:
    text = site.ask("/usage", authorization=STAFF).text
    assert "4 kWh" in text
    assert "&lt;b&gt;" in text
    assert "<b></bdi>" not in text
    assert 'href="/usage?range=30d&amp;by=user"' in text
    assert "0.80 EUR" in text
    assert "<svg" in text


def test_users_see_their_own(site: PageSite) -> None:
    answer = site.ask("/data/usage?by=user", authorization=USER).json()
    assert [row["key"] for row in answer["usage"]["rows"]] == ["eve"]
    assert answer["usage"]["total"]["joules"] == 4 * KWH
    (plot,) = answer["plots"]
    assert sum(plot["series"][0]["mean"]) == 4000


def test_csv_of_sums(site: PageSite) -> None:
    answer = site.ask("/csv/usage?range=7d", authorization=STAFF)
    head, *rows = answer.text.splitlines()
    assert head.startswith("period,key,jobs,")
    assert [row.split(",")[1:3] for row in rows] == [["bio", "2"], ["<b>", "1"]]
    assert answer.headers["content-disposition"] == 'attachment; filename="usage.csv"'


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_days_begin_at_midnight_also_when_the_clock_changes(site: PageSite) -> None:
    """The clock of Berlin was put forward on 31 March 2024 at 2:00."""
    midnight, afternoon, after_midnight = 1_711_839_600, 1_711_893_600, 1_711_923_000
    job = StoredJob("fox", "9", "eve", "completed", midnight, after_midnight - 60, ("n1",))
    assert site.sources.usage is not None
    uses = {"n1": NodeJobEnergy({("cpu", "idle"): KWH}, {}, 0.1 * KWH, KWH)}
    site.sources.usage.table.keep(job, uses, 100.0)
    for start in (midnight, afternoon):
        path = f"/data/usage?from={start}&to={after_midnight}"
        (plot,) = site.ask(path, authorization=STAFF).json()["plots"]
        assert (plot["start"], plot["series"][0]["mean"]) == (midnight, [0, 1000])


@pytest.mark.parametrize("query", ["by=name", "range=1s", "from=x", "range=99999d"])
def test_a_bad_query_shows_the_page(site: PageSite, query: str) -> None:
    assert site.ask(f"/usage?{query}", authorization=STAFF).status == 200


def test_a_name_that_is_not_utf_8_has_no_energy(site: PageSite) -> None:
    assert site.ask("/cluster/~FF/jobs", authorization=STAFF).status == 200


def test_a_time_without_jobs_says_so(site: PageSite) -> None:
    text = site.ask("/usage?from=1000&to=2000", authorization=STAFF).text
    assert "No job ended in this time." in text


def test_without_a_table_there_is_no_page(site: PageSite) -> None:
    site.sources.usage = None
    reply = site.ask("/usage", authorization=STAFF)
    assert reply.status == 404
    assert 'href="/usage"' not in reply.text
