"""The pages of a simulated cluster in a real browser: Debian's Chromium."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.support.effort import IS_NIGHTLY
from tests.support.page_server import RunningDemo, fetch, find_violations, watch
from tests.support.running import until

PAGES = {
    "front": "/",
    "cluster": "/cluster/demo",
    "jobs": "/cluster/demo/jobs",
    "job": "/cluster/demo/job/4711002",
    "several nodes": "/cluster/demo/job/4711001",
    "node": "/cluster/demo/node/g001",
    "here": "/cluster/here",
    "node here": f"/cluster/here/node/{socket.gethostname().partition('.')[0]}",
    "nothing": "/cluster/nothing",
}


@pytest.fixture(scope="module", autouse=True)
def _node_is_there(demo: RunningDemo) -> None:
    """Wait until this node has sent values."""
    until(lambda: fetch(f"{demo.url}/cluster/here") is not None, seconds=30)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_a_problem(demo: RunningDemo, browser: Browser, name: str) -> None:
    with watch(browser, demo.url) as window:
        page = window.open(PAGES[name])
        assert page.locator("main h1").is_visible()
        assert has_text_of_all_plots(page)
        for width in (1280, 400):
            page.set_viewport_size({"width": width, "height": 900})
            # Nothing but a table of its own is wider than the window.
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        problems = [one for one in window.problems if name != "nothing" or "404" not in one]
        assert problems == []


def test_a_job_has_tables_of_its_file_systems_and_network(
    demo: RunningDemo, browser: Browser
) -> None:
    with watch(browser, demo.url) as window:
        page = window.open(PAGES["job"])
        mounts = page.get_by_role("region", name="File systems of the job").locator("tbody th")
        assert mounts.all_inner_texts() == ["/scratch", "/tmp", "/home"]
        ways = page.get_by_role("region", name="Network of the job").locator("tbody th")
        assert ways.all_inner_texts() == ["TCP", "TCP within a node", "UDP"]
        assert "processors" in page.locator("dl.facts").inner_text()
        assert window.problems == []


def has_text_of_all_plots(page: Page) -> bool:
    """Return whether each plot has a sentence, and its drawing a name."""
    plots = page.locator("figure.plot").all()
    return all(
        one.locator("figcaption p, p.empty").first.text_content() and (
            one.locator(".empty").count() or one.locator("svg.lines").get_attribute("aria-label")
        )
        for one in plots
    )  # fmt: skip


@pytest.mark.parametrize("name", ["cluster", "job", "jobs", "node"])
def test_pages_are_read_without_scripts(demo: RunningDemo, browser: Browser, name: str) -> None:
    with watch(browser, demo.url, java_script_enabled=False) as window:
        page = window.open(PAGES[name])
        assert page.locator("h1").is_visible()
        if name != "jobs":
            assert page.locator("figure.plot svg.lines path.line").count() > 3
            # The table behind a plot opens without a script.
            page.locator("figure.plot summary").first.click()
            assert page.locator("figure.plot table").first.is_visible()
        if name == "jobs":
            page.locator("select[name=verdict]").select_option("BAD")
            page.get_by_role("button", name="Filter").click()
            assert "verdict=BAD" in page.url
            assert page.locator("table.jobs tbody tr").count() > 5
        assert window.problems == []


@pytest.mark.parametrize(
    ("name", "scheme"),
    [("cluster", "light"), ("jobs", "light"), ("job", "dark"), ("node", "light"),
     ("nothing", "light"), ("here", "light"), ("node here", "dark")]
    + [("job", "light"), ("cluster", "dark"), ("node here", "light")] * IS_NIGHTLY,
)  # fmt: skip
def test_a_checker_of_accessibility_finds_nothing(
    demo: RunningDemo, browser: Browser, name: str, scheme: Any
) -> None:
    # The checker is a script of its own, which the pages' policy would refuse.
    with watch(browser, demo.url, color_scheme=scheme, bypass_csp=True) as window:
        page = window.open(PAGES[name])
        # One plot is as another, and so is one row.
        page.evaluate(
            "document.querySelectorAll('figure.plot:nth-child(n+3), tbody tr:nth-child(n+7),"
            " svg.cells a:nth-child(n+4)').forEach((one) => one.remove())"
        )
        assert [describe(one) for one in find_violations(page)] == []


def describe(violation: dict[str, Any]) -> str:
    places = [node["html"][:200] for node in violation["nodes"][:3]]
    return f"{violation['id']}: {violation['help']}: {places}"


def test_times_are_in_the_zone_of_the_browser(demo: RunningDemo, browser: Browser) -> None:
    with watch(browser, demo.url, timezone_id="Asia/Tokyo") as window:
        page = window.open(PAGES["cluster"])
        page.wait_for_selector("text=Times in Asia/Tokyo (UTC+09:00)")
        page.get_by_text("from … to").click()
        page.locator("input[name=from]").fill("2026-01-01T10:00")
        shown = page.locator("input[name=to]").input_value()
        page.get_by_role("button", name="Show").click()
        assert "tz=Asia%2FTokyo" in page.url
        assert page.locator("input[name=to]").input_value() == shown
        # UTC is kept on other pages, until local time is chosen.
        page.goto(f"{demo.url}{PAGES['jobs']}")
        page.locator(".zone a").click()
        page.wait_for_selector("text=Times in UTC")
        page.goto(f"{demo.url}{PAGES['node']}")
        page.wait_for_selector("text=Times in UTC")
        page.get_by_role("link", name="local time").click()
        page.wait_for_selector("text=Times in Asia/Tokyo")
        assert window.problems == []


def test_without_scripts_times_are_in_utc(demo: RunningDemo, browser: Browser) -> None:
    with watch(browser, demo.url, timezone_id="Asia/Tokyo", java_script_enabled=False) as window:
        page = window.open(PAGES["cluster"])
        assert "Times in UTC" in page.locator("form.times").inner_text()
        page.goto(f"{demo.url}{PAGES['cluster']}?tz=Asia/Tokyo")
        assert "Times in Asia/Tokyo" in page.locator("form.times").inner_text()


def test_a_node_page_is_short_and_unfolds(demo: RunningDemo, browser: Browser) -> None:
    with watch(browser, demo.url, width=400) as window:
        page = window.open(PAGES["node here"])
        assert page.evaluate("document.documentElement.scrollHeight") < 6000
        memory = page.locator("details.group", has_text="Memory")
        assert not memory.locator("svg.lines").first.is_visible()
        memory.locator("summary").first.click()
        assert memory.locator("svg.lines").first.is_visible()
        page.get_by_label("part of a metric's name").fill("mem_us")
        page.get_by_role("button", name="Filter").click()
        assert page.locator("figure.plot h3").all_inner_texts() == ["mem_used", "ccagent_mem_used"]
        assert window.problems == []


def test_a_plot_is_zoomed_with_bokeh(demo: RunningDemo, browser: Browser) -> None:
    with watch(browser, demo.url) as window:
        page = window.open(PAGES["job"])
        page.get_by_role("link", name="Zoom and pan").click()
        page.wait_for_selector("figure.zoomed canvas", state="attached", timeout=60_000)
        page.wait_for_load_state("networkidle")
        box = page.locator("figure.zoomed .drawing").first.bounding_box()
        assert box is not None
        with page.expect_response(re.compile("/data/.*from=")) as finer:
            page.mouse.move(box["x"] + 200, box["y"] + 120)
            page.mouse.down()
            page.mouse.move(box["x"] + 320, box["y"] + 130, steps=5)
            page.mouse.up()
        plots = finer.value.json()["plots"]
        assert len({(one["start"], one["step"]) for one in plots}) == 1
        assert window.problems == []
        page.get_by_role("link", name="Back to drawings").click()
        assert page.locator("svg.lines").first.is_visible()


def test_a_page_is_refreshed_and_keeps_what_is_open(demo: RunningDemo, browser: Browser) -> None:
    with watch(browser, demo.url) as window:
        context = window.page.context
        window.page.clock.install()
        page = window.open(PAGES["cluster"])
        page.locator("figure.plot summary").first.click()
        before = len(window.requests)
        with page.expect_response(f"{demo.url}/cluster/demo"):
            page.clock.run_for(31_000)
        assert len(window.requests) > before
        page.wait_for_function("document.querySelector('figure.plot details').open")
        # A store that can't be reached: the figures stay, and say how old they are.
        context.set_offline(True)
        page.clock.run_for(31_000)
        page.wait_for_selector("main.stale", state="attached")
        assert "can't be reached" in page.locator("#live").inner_text()
        assert page.locator("figure.plot svg.lines").first.is_visible()


def test_a_refresh_keeps_the_place_of_the_keyboard(demo: RunningDemo, browser: Browser) -> None:
    with watch(browser, demo.url, width=400) as window:
        window.page.clock.install()
        page = window.open(PAGES["cluster"])
        place = page.locator("figure.plot summary").nth(1)
        place.focus()
        page.evaluate(
            "const one = document.querySelector('.wide:has(svg.cells)'); one.scrollLeft = 70;"
            " document.getElementById('main').dataset.old = 'yes'"
        )
        page.clock.run_for(31_000)
        page.wait_for_selector("main:not([data-old])")
        assert page.evaluate(
            "document.activeElement === document.querySelectorAll('figure.plot summary')[1]"
        )
        assert page.evaluate("document.querySelector('.wide:has(svg.cells)').scrollLeft") == 70


@pytest.mark.parametrize("name", ["cluster", "job", "jobs", "node"])
def test_a_printed_page_shows_all_of_its_tables(
    demo: RunningDemo, browser: Browser, name: str
) -> None:
    with watch(browser, demo.url, width=720) as window:
        page = window.open(PAGES[name])
        page.emulate_media(media="print")
        assert page.evaluate("document.documentElement.scrollWidth") <= 720
        assert not page.locator("button:visible, input:visible, select:visible").count()


def test_pages_of_a_fixed_time_are_not_refreshed(demo: RunningDemo, browser: Browser) -> None:
    with watch(browser, demo.url) as window:
        window.page.clock.install()
        page = window.open("/cluster/demo?from=1700000000&to=1700003600")
        before = len(window.requests)
        page.clock.run_for(120_000)
        assert [one for one in window.requests[before:] if "/static/" not in one] == []


def test_the_report_of_a_job_is_that_of_the_command(
    demo: RunningDemo, browser: Browser, tmp_path: Path
) -> None:
    store = re.search(r"store: (\S+)", demo.said())
    assert store
    done = subprocess.run(
        [sys.executable, "-m", "ccagent", "job", "4711010", "--store", store[1], "--json"],
        capture_output=True, text=True, check=True, env={"HOME": str(tmp_path)},
    )  # fmt: skip
    report = json.loads(done.stdout)
    with watch(browser, demo.url) as window:
        page = window.open("/cluster/demo/job/4711010")
        text = page.locator("main").inner_text()
    assert report["verdict"] == "BAD"
    for finding in report["findings"]:
        assert finding["text"] in text
    assert f"{report['efficiency']['cpu']['percent']:.0f} %" in text


def test_a_trial_leaves_nothing_behind(tmp_path: Path) -> None:
    with RunningDemo(tmp_path / "tmp", "ccagent", "try") as running:
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
        until(lambda: bool(children.read_text().split()), seconds=10)
        child = children.read_text().split()[0]
        assert list(running.directory.iterdir())
        assert running.interrupt() == 0, running.said()
        assert list(running.directory.iterdir()) == []
        until(lambda: not Path(f"/proc/{child}").exists(), seconds=10)
        assert "Traceback" not in running.said()
