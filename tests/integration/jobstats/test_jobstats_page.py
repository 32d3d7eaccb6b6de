"""The page of Lustre in a browser: pages of a metric store that asks a real jobstats store."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.integration.jobstats.test_jobstats_live import at, fill
from tests.support.jobstats_store import BEGIN, RunningJobstatsStore
from tests.support.metric_store import RunningStore
from tests.support.page_server import find_violations, open_browser, watch

PLACE = f"/lustre?at={(BEGIN + timedelta(minutes=104)).timestamp():.0f}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture
def pages(tmp_path: Path, store: RunningJobstatsStore) -> Iterator[str]:
    """The address of pages that ask the jobstats store."""
    fill(store)
    tags = "hostname=a,stype=filesystem,stype-id=fs-OST0000"
    moment = int((BEGIN + timedelta(minutes=104)).timestamp())
    for name, value in (("exports", 12), ("capacity_total", 80), ("capacity_available", 20)):
        state = f"lustre_ost_{name},{tags} value={value} {moment}"
        assert store.ask("POST", "/write", state).status == 200
    configuration = tmp_path / "metrics.toml"
    configuration.write_text(f'[web]\njobstats = "{store.url}"\n')
    options = ("--config", str(configuration), "--web", "127.0.0.1:0")
    with RunningStore(tmp_path / "metrics", *options) as running:
        job = {
            "job_id": 42, "job_state": "COMPLETED", "user_name": "u-fox", "nodes": ["c2"],
            "start_time": at(0), "end_time": at(120), "allocated_resources": "cpu=4,mem=4G,node=1",
        }  # fmt: skip
        envelope = {"data": {"attributes": {"cluster": "fox", "slurm_jobs": [job]}}}
        assert running.ask("POST", "/api/jobs/", json.dumps(envelope)).status == 200
        found = re.search(r"pages at (http://\S+)/\n", running.log.read_text())
        assert found
        yield found[1]
        running.stop()


def rows(page: Page, name: str) -> list[list[str]]:
    region = page.get_by_role("region", name=name)
    region.wait_for()
    found = region.locator("tbody tr").all()
    return [one.locator("th, td").all_inner_texts() for one in found]


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_of_lustre_fits_its_window(
    pages: str, browser: Browser, width: int, tmp_path: Path
) -> None:
    for has_scripts in (True, False):
        with watch(browser, pages, width=width, java_script_enabled=has_scripts) as window:
            for place in (PLACE, "/lustre", "/cluster/fox/job/42"):
                page = window.open(place)
                assert page.locator("main h1").is_visible()
                assert page.screenshot(path=str(tmp_path / f"{width}.png"), full_page=True)
                if has_scripts:
                    assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert window.problems == []


def test_targets_and_jobs_of_a_time_are_shown(pages: str, browser: Browser) -> None:
    with watch(browser, pages, bypass_csp=True) as window:
        page = window.open(PLACE)
        mdt, ost = rows(page, "Targets of Lustre")
        assert (mdt[0], mdt[4], mdt[7:]) == ("fs-MDT0000", "▲ 251 times", ["unknown"] * 4)
        assert (ost[0], ost[2], ost[4:7]) == (
            "fs-OST0000", "1 kB/s", ["1 times", "none", "500 µs"],
        )  # fmt: skip
        assert ost[7:] == ["unknown", "25 %", "12", "unknown"]
        page.get_by_role("link", name="metadata", exact=True).click()
        first, *_ = rows(page, "Jobs on Lustre")
        assert first[:2] == ["42", "u-fox"]
        assert first[6] == "open, 502 /s"
        assert first[9:] == ["fs", "physics", "RUNNING", "1"]
        assert f"at={PLACE.partition('=')[2]}" in page.url
        assert find_violations(page) == []
        # From a job to its page, and back.
        page.get_by_role("link", name="42", exact=True).click()
        assert page.url.endswith("/cluster/fox/job/42")
        (io,) = rows(page, "Lustre, as its servers have counted")
        assert (io[0], io[5:]) == ("fs", ["2 of 2 jobs", "1 of 2 jobs"])
        page.get_by_role("link", name="All jobs on Lustre").click()
        assert page.locator("h1").inner_text().startswith("Lustre at ")
        assert window.problems == []


def test_a_store_that_is_gone_is_one_sentence(
    pages: str, store: RunningJobstatsStore, browser: Browser
) -> None:
    store.stop()
    with watch(browser, pages) as window:
        page = window.open(PLACE)
        said = page.get_by_role("alert").inner_text()
        assert said == (
            f"The jobstats store has not answered: {store.url}: connection refused: "
            "is the store running?"
        )
        page = window.open("/cluster/fox/job/42")
        assert said in page.locator("main").inner_text()
        assert page.locator("section.tiles").is_visible()
