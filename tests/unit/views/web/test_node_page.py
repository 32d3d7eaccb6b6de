"""The page of a node: groups of metrics, what has no plot, and the range of a young store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.page_site import PageSite

PAGE = "/cluster/demo/node/x1"
VALUES = {
    "cpu_load": 3.0, "mem_used": 2.0, "net_bytes_in": 5.0, "disk_read": 0.0, "oom_kills": 0.0,
    "lustre_open": 1.0, "my_own": 7.0,
}  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PageSite]:
    """Yield a site with a node that has sent values for ten minutes."""
    found = PageSite(tmp_path, nodes=1, seconds=60, jobs=[])
    for metric, value in VALUES.items():
        for minute in range(10, 0, -1):
            found.store.write(("demo", "x1"), metric, found.now - 60 * minute, value)
    yield found
    found.close()


def groups(text: str) -> dict[str, tuple[bool, list[str], str]]:
    """Return by title: whether the group is open, its plots, and the text on other metrics."""
    found: dict[str, tuple[bool, list[str], str]] = {}
    for one in re.findall(r'<details class="group".*?(?=<details class="group"|</section>)',
                          text, re.DOTALL):  # fmt: skip
        title = re.search("<h3>(.*?)</h3>", one)
        assert title
        notes = " ".join(re.findall(r'<p class="empty">(.*?)</p>', one))
        plots = re.findall('data-key="(.*?)"', one)
        found[title[1]] = " open>" in one.partition("<summary>")[0], plots, notes
    return found


def test_metrics_are_in_groups_and_only_the_first_are_open(site: PageSite) -> None:
    assert groups(site.ask(PAGE).text) == {
        "Processors": (True, ["cpu_load"], ""),
        "Memory": (False, ["mem_used"], "0 all the time: oom_kills."),
        "Network": (False, ["net_bytes_in"], ""),
        "File systems and disks": (False, ["lustre_open"], "0 all the time: disk_read."),
        "Others": (False, ["my_own"], ""),
    }


def test_a_filter_by_name_opens_what_it_finds(site: PageSite) -> None:
    found = groups(site.ask(f"{PAGE}?q=Bytes").text)
    assert found == {"Network": (True, ["net_bytes_in"], "")}
    text = site.ask(f"{PAGE}?q=%3Cb%3E&range=1h").text
    assert "No metric of this name" in text
    assert "<b>" not in text.partition("<main")[2]
    assert 'name="range" value="1h"' in text


def test_a_metric_without_values_in_a_time_is_named(site: PageSite) -> None:
    site.store.write(("demo", "x1"), "mem_free", site.now - 3000, 5.0)
    end = site.now
    found = groups(site.ask(f"{PAGE}?from={end - 600}&to={end}").text)
    assert "No value in this time: mem_free." in found["Memory"][2]


def test_a_metric_without_a_plot_is_still_exported(site: PageSite) -> None:
    rows = site.ask(f"/csv{PAGE}?plot=disk_read").text.splitlines()
    assert rows[1].endswith(",0.0,0.0,0.0")


@pytest.mark.parametrize("query", ["", "?range=1h", "?range=7d"])
def test_the_range_begins_with_the_first_value(site: PageSite, query: str) -> None:
    answer = site.ask(f"/data{PAGE}{query}").json()
    for plot in answer["plots"]:
        assert site.now - 720 <= plot["start"] <= site.now - 540
        assert None not in plot["series"][0]["mean"][1:-1]
    assert "Values since" in site.ask(f"{PAGE}{query}").text


def test_a_range_after_the_first_value_is_whole(site: PageSite) -> None:
    assert "Values since" not in site.ask(f"{PAGE}?range=5m").text
    fixed = site.ask(f"{PAGE}?from={site.now - 36000}&to={site.now}").text
    assert "Values since" not in fixed


def test_nodes_without_jobs_show_their_use(site: PageSite) -> None:
    for metric in ("cpu_idle", "mem_available"):
        site.store.write(("demo", "x1", "hwthread0"), metric, site.now - 60, 0.0)
    node, cluster = (site.ask(path).text for path in (PAGE, "/cluster/demo"))
    for text in (node, cluster):
        shown = re.sub("<[^>]*>", " ", text.partition("<main")[2])
        assert not re.search("idle|busy|free|allocated", shown.replace("cpu_idle", "")), shown
        assert re.search(r"\bup\b", shown)
        assert "The agent  jobs  sends" in shown
    assert "100 %" in node
    assert "in use" in cluster
    assert "1 node." in cluster or "2 nodes." in cluster


def test_after_the_first_job_nodes_are_idle_or_busy(site: PageSite) -> None:
    site.start({"jobId": 7, "cluster": "demo", "user": "eve", "startTime": site.now - 300,
                "resources": [{"hostname": "c001"}]})  # fmt: skip
    text = site.ask("/cluster/demo").text
    assert "1 idle" in text
    assert "1 busy" in text
    assert "allocated" in text
