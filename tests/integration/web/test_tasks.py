"""What people come to the pages for, done in a browser, with the number of clicks.

pytest -s -k tasks       # prints the clicks of each task
"""

from __future__ import annotations

import re
import time
import urllib.request
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page

from tests.support.page_server import RunningDemo, Watched, watch

TRAIN, TRAIN_2 = "4711002", "4711003"


class Visit:
    """A person in a browser who counts the clicks."""

    def __init__(self, window: Watched) -> None:
        self.page = window.page
        self.clicks = 0

    def click(self, thing: Locator) -> Page:
        self.clicks += 1
        thing.click()
        self.page.wait_for_load_state("load")
        return self.page

    def click_link(self, name: str) -> Page:
        return self.click(self.page.get_by_role("link", name=name, exact=True).first)

    def search(self, text: str) -> Page:
        self.page.get_by_role("searchbox", name="Job, user or node").fill(text)
        return self.click(self.page.get_by_role("button", name="Find"))


def send(demo: RunningDemo, lines: str) -> None:
    store = re.search(r"store: (\S+)", demo.said())
    assert store
    request = urllib.request.Request(f"{store[1]}/api/write/", data=lines.encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def find_blockers_of_gpus(visit: Visit, demo: RunningDemo) -> str:
    page = visit.click_link("Running jobs with an idle GPU")
    users = page.locator("table.jobs tbody td:nth-child(3)").all_inner_texts()
    assert {one.partition("/")[0] for one in users} == {"bob", "kim"}
    return ", ".join(users)


def find_why_a_job_was_slow(visit: Visit, demo: RunningDemo) -> str:
    page = visit.search("4711015")
    found = page.locator("ul.findings li").first.inner_text()
    assert "serial" in found
    return found


def compare_two_jobs(visit: Visit, demo: RunningDemo) -> str:
    page = visit.click_link("Jobs")
    for name in ("train.py", "train-2.py"):
        row = page.locator("table.jobs tbody tr").filter(has=page.get_by_text(name, exact=True))
        visit.click(row.get_by_role("checkbox"))
    page = visit.click(page.get_by_role("button", name="Compare marked jobs"))
    legend = page.locator("#plot-gpu .legend li").all_inner_texts()
    assert [one.strip() for one in legend] == [f"{TRAIN} train.py", f"{TRAIN_2} train-2.py"]
    return page.locator("#plot-gpu figcaption p").inner_text()


def find_the_silent_node(visit: Visit, demo: RunningDemo) -> str:
    page = visit.click(visit.page.get_by_role("link", name=re.compile(r"\d+ silent")))
    nodes = page.get_by_role("region", name="Table of nodes").locator("tbody tr")
    (quiet,) = [one for one in nodes.all_inner_texts() if one.startswith("quiet")]
    assert "silent" in quiet
    return quiet


def find_the_use_of_a_project(visit: Visit, demo: RunningDemo) -> str:
    visit.click_link("Usage")
    page = visit.click_link("7d")
    rows = page.get_by_role("region", name="Energy, CO2 and cost").locator("tbody tr")
    row = rows.filter(has=page.get_by_text("astro", exact=True))
    assert "2.5 kWh" in row.inner_text()
    return row.inner_text()


TASKS = {
    "who blocks GPUs without using them": (find_blockers_of_gpus, 1),
    "why was job X slow": (find_why_a_job_was_slow, 1),
    "compare X with Y": (compare_two_jobs, 4),
    "which node is silent": (find_the_silent_node, 1),
    "what did project P use last week": (find_the_use_of_a_project, 2),
}


@pytest.fixture(scope="module", autouse=True)
def _things_are_there(demo: RunningDemo) -> None:
    """Add a node that has stopped sending, and an ended job with its energy, to the store."""
    now = int(time.time())
    lines = [f"cpu_load,cluster=demo,hostname=quiet,type=node value=1 {now - 3600}"]
    start = (
        f'{{\\"jobId\\":42,\\"cluster\\":\\"demo\\",\\"user\\":\\"zoe\\",\\"project\\":\\"astro\\",'
        f'\\"startTime\\":{now - 7200},\\"resources\\":[{{\\"hostname\\":\\"quiet\\"}}]}}'
    )
    stop = f'{{\\"jobId\\":42,\\"cluster\\":\\"demo\\",\\"stopTime\\":{now - 3600}}}'
    lines.append(f'job,function=start_job,hostname=m,type=node event="{start}" {now}')
    tags = "cluster=demo,hostname=quiet,type=node,stype=job,stype-id=42,part=cpu,share=active"
    for minute in range(61):
        energy = 9e6 * minute / 60
        lines.append(f"job_energy,{tags} value={energy} {now - 7200 + 60 * minute}")
    lines.append(f'job,function=stop_job,hostname=m,type=node event="{stop}" {now}')
    send(demo, "\n".join(lines))


@pytest.mark.parametrize("has_scripts", [True, False], ids=["scripts", "no scripts"])
@pytest.mark.parametrize("task", TASKS)
def test_tasks_take_few_clicks(
    demo: RunningDemo, browser: Browser, task: str, has_scripts: bool
) -> None:
    do, clicks = TASKS[task]
    with watch(browser, demo.url, java_script_enabled=has_scripts) as window:
        visit = Visit(window)
        window.open("/cluster/demo")
        answer = do(visit, demo)
        print(f"{visit.clicks} clicks: {task}: {answer}")
        assert visit.clicks == clicks
        assert window.problems == []


def values_at(page: Page, key: str) -> list[str]:
    return page.locator(f"#plot-{key} .tip span").all_inner_texts()


def test_a_crosshair_is_common_to_all_plots(demo: RunningDemo, browser: Browser) -> None:
    with watch(browser, demo.url) as window:
        page = window.open(f"/cluster/demo/job/{TRAIN}")
        area = page.locator("#plot-cpu svg.lines")
        area.scroll_into_view_if_needed()
        box = area.bounding_box()
        assert box
        before = len(window.requests)
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60)
        page.wait_for_selector("#plot-memory .tip b")
        assert len(page.locator(".crosshair:visible").all()) > 1
        assert values_at(page, "gpu")[1].endswith("GPU 1: 0 %")
        assert re.fullmatch(r"[\d.]+", values_at(page, "cpu")[0])
        times = {one.inner_text() for one in page.locator(".tip:visible b").all()}
        assert len(times) == 1
        assert [one for one in window.requests[before:] if "/data/" in one]
        # A move requests nothing again, and the line goes when the pointer does.
        before = len(window.requests)
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
        assert {one.inner_text() for one in page.locator(".tip:visible b").all()} != times
        page.mouse.move(5, 5)
        assert not page.locator(".crosshair:visible").count()
        assert window.requests[before:] == []
        assert window.problems == []


def test_a_comparison_has_the_time_since_the_start(demo: RunningDemo, browser: Browser) -> None:
    with watch(browser, demo.url) as window:
        page = window.open(f"/cluster/demo/compare?jobs={TRAIN},{TRAIN_2}")
        box = page.locator("#plot-cpu svg.lines").bounding_box()
        assert box
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
        page.wait_for_selector("#plot-cpu .tip b")
        assert re.fullmatch(r"\d:\d\d h", page.locator("#plot-cpu .tip b").inner_text())
        assert len(values_at(page, "cpu")) == 2
        page.get_by_text("Choose plots").click()
        page.get_by_role("checkbox", name="GPU memory").check()
        page.get_by_role("button", name="Show", exact=True).click()
        page.wait_for_url(re.compile("plots=gpu-memory"))
        assert page.locator("figure.plot").count() == 1
        assert window.problems == []


def test_a_table_is_sorted_without_scripts(demo: RunningDemo, browser: Browser) -> None:
    with watch(browser, demo.url, java_script_enabled=False) as window:
        page = window.open("/cluster/demo/jobs")
        page.get_by_role("link", name="user", exact=True).first.click()
        users = page.locator("table.jobs tbody td:nth-child(3)").all_inner_texts()
        assert users == sorted(users, key=lambda one: one.partition("/")[0])
        page.get_by_text("More filters").click()
        page.get_by_role("textbox", name="nodes", exact=True).fill("3-")
        page.get_by_role("button", name="Filter").click()
        assert "nodes=3-" in page.url
        assert "sort=user" in page.url
        sizes = page.locator("table.jobs tbody td:nth-child(6)").all_inner_texts()
        assert sizes
        assert all(re.match(r"[3-9] nodes", one) for one in sizes)
        page.get_by_role("link", name="Histograms").click()
        assert page.locator("figure.spread").count() >= 3
        assert window.problems == []


def test_a_refresh_is_chosen(demo: RunningDemo, browser: Browser) -> None:
    with watch(browser, demo.url) as window:
        window.page.clock.install()
        page = window.open("/cluster/demo/jobs")
        page.get_by_role("checkbox").nth(3).check()
        page.get_by_role("combobox", name="refresh").select_option("10")
        page.evaluate("document.activeElement.blur()")

        def fetched(answer: Any) -> bool:
            return "max-age=10" in answer.request.headers.get("cache-control", "")

        with page.expect_response(fetched):
            page.clock.run_for(11_000)
        assert page.get_by_role("checkbox").nth(3).is_checked()
        page.get_by_role("combobox", name="refresh").select_option("0")
        before = len(window.requests)
        page.clock.run_for(600_000)
        assert window.requests[before:] == []
        page.reload()
        assert page.get_by_role("combobox", name="refresh").input_value() == "0"
        assert window.problems == []
