"""The list of jobs as a tool: orders, filters, histograms and comparison, all in the address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from ccagent.stores.metrics.job_details import StoredJobDetails
from ccagent.stores.metrics.job_table import WaitingJob
from ccagent.stores.metrics.page_settings import WebSettings
from ccagent.stores.metrics.settings import UsageSettings
from ccagent.stores.metrics.usage.job_energy import NodeJobEnergy
from ccagent.stores.metrics.usage.keeper import UsageKeeper
from ccagent.views.web.pages.filters import RANGES, NumberRange
from tests.support.page_site import PageSite, token
from tests.unit.views.web.test_application import (
    HOSTILE,
    assert_harmless,
    hostile_event,
    number_of,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageSite]:
    found = PageSite(tmp_path_factory.mktemp("jobs"))
    found.start(hostile_event(found))
    yield found
    found.close()


def listed(site: PageSite, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.ask(
        f"/data/cluster/demo/jobs?{urlencode({'range': '48h', **query})}"
    ).json()["jobs"]
    return found


@pytest.mark.parametrize(
    ("name", "text", "low", "high"),
    [
        ("ran", "30m-12h", 1800, 43200), ("ran", "2h-", 7200, None), ("ran", "-1", None, 3600),
        ("nodes", "4", 4, 4), ("nodes", "2-8", 2, 8), ("cpu", "0-50 %", 0, 50),
        ("energy", "500Wh-1MWh", 0.5, 1000),
    ],
)  # fmt: skip
def test_a_range_is_read(name: str, text: str, low: float | None, high: float | None) -> None:
    found = RANGES[name].parse(text)
    assert isinstance(found, NumberRange)
    assert found.low == (float("-inf") if low is None else low)
    assert found.high == (float("inf") if high is None else high)


@pytest.mark.parametrize("text", ["", "-", "x", "1-2-3", "1e9", "5kg-", "\u0661-2", HOSTILE])
def test_another_text_is_no_range(text: str) -> None:
    assert RANGES["cpu"].parse(text) is None


@pytest.mark.parametrize(
    ("order", "field"),
    [("-start", "start"), ("start", "start"), ("-ran", "elapsed"), ("user", "user"),
     ("-size", "cores"), ("-cpu", "cpu_percent"), ("memory", "memory_percent"),
     ("-gpu", "gpu_percent"), ("job", "job")],
)  # fmt: skip
def test_a_list_has_the_order_of_its_address(site: PageSite, order: str, field: str) -> None:
    values = [int(one[field]) if field == "job" else one[field] for one in listed(site, sort=order)]
    known = [one for one in values if one is not None]
    assert known
    assert known == sorted(known, reverse=order.startswith("-"))
    assert values[: len(known)] == known  # unknown ones are last
    text = site.ask(f"/cluster/demo/jobs?sort={order}").text
    direction = "descending" if order.startswith("-") else "ascending"
    assert text.count(f'aria-sort="{direction}"') == 1


@pytest.mark.parametrize(
    ("query", "field", "low", "high"),
    [
        ({"ran": "2h-"}, "elapsed", 7200, 1e9), ({"ran": "0s-1h"}, "elapsed", 0, 3599),
        ({"nodes": "2-"}, "nodes", 2, 1e9), ({"cpu": "0-50"}, "cpu_percent", 0, 49.999),
        ({"gpu": "-15"}, "gpu_percent", 0, 14.999), ({"user": "dave"}, "user", "dave", "dave"),
        ({"account": "bio"}, "account", "bio", "bio"),
        ({"partition": "gpu"}, "partition", "gpu", "gpu"),
        ({"user": "dave", "nodes": "2", "sort": "-ran"}, "nodes", 2, 2),
    ],
)  # fmt: skip
def test_a_filter_is_all_that_is_shown(
    site: PageSite, query: dict[str, str], field: str, low: Any, high: Any
) -> None:
    found = listed(site, **query)
    assert found
    assert all(low <= one[field] <= high for one in found)
    assert len(found) < len(listed(site))


def test_a_histogram_leads_to_the_jobs_that_it_counts(site: PageSite) -> None:
    text = site.ask("/cluster/demo/jobs?range=48h&show=histograms").text
    assert "run time" in text
    bars = re.findall(r'<a href="([^"]*)">([^<]*)</a></th><td><progress[^>]*></progress></td>'
                      r"<td>(\d+)<", text)  # fmt: skip
    assert len(bars) > 10
    for link, name, count in bars[:: len(bars) // 6]:
        shown = site.ask(unescape(link)).text
        assert f"<p>{count} job" in shown, name


def test_a_rule_leads_to_the_jobs_with_its_finding(site: PageSite) -> None:
    text = site.ask("/cluster/demo/jobs?range=48h").text
    link = re.search(r'href="([^"]*rule=gpu-idle[^"]*)">gpu-idle<', text)
    assert link
    assert link[1] == "/cluster/demo/jobs?rule=gpu-idle"
    found = listed(site, rule="gpu-idle")
    assert found
    assert all("gpu-idle" in one["rules"].split() for one in found)
    assert 'rule=gpu-idle&amp;state=running"' in site.ask("/cluster/demo").text


def test_other_filters_stay_in_links_and_forms(site: PageSite) -> None:
    text = site.ask("/cluster/demo/jobs?user=dave&ran=1h-&sort=-cpu").text
    assert '<input type="hidden" name="user" value="dave">' in text
    assert '<input type="hidden" name="sort" value="-cpu">' in text
    assert re.search(r'href="[^"]*user=dave&amp;ran=1h-&amp;[^"]*sort=cpu"', text)
    assert re.search(r'href="[^"]*user=dave[^"]*range=7d"', text)


def test_names_of_people_and_things_are_links(site: PageSite) -> None:
    text = site.ask("/cluster/demo/jobs").text
    for place in ("user=dave", "account=chem", "partition=gpu"):
        assert f'href="/cluster/demo/jobs?{place}"' in text
    job = site.ask(f"/cluster/demo/job/{number_of(site, 'train.py')}").text
    for place in ("user=bob", "account=ml", "partition=gpu"):
        assert f'href="/cluster/demo/jobs?{place}&amp;range=7d"' in job
    assert 'href="/cluster/demo/node/g001"' in job


def test_a_list_filtered_by_energy_has_the_measured_jobs(tmp_path: Path) -> None:
    found = PageSite(tmp_path, nodes=8, seconds=3600)
    keeper = UsageKeeper(UsageSettings(), str(tmp_path))
    found.sources.usage = keeper
    ended = [one for one in found.cluster.stored_jobs() if one.stop is not None]
    for number, job in enumerate(ended[:3]):
        use = NodeJobEnergy({("cpu", "active"): 3.6e6 * (1 + number)}, {})
        keeper.table.keep(job, {"n1": use}, None)
    jobs = listed(found, energy="2-", sort="energy")
    assert [one["energy_kwh"] for one in jobs] == [2.0, 3.0]
    assert "2 kWh" in found.ask("/cluster/demo/jobs?sort=-energy&range=48h").text
    keeper.close()
    found.close()


# Comparison


def compare(site: PageSite, jobs: str, **more: str) -> str:
    reply = site.ask(f"/cluster/demo/compare?{urlencode({'jobs': jobs, **more})}")
    assert reply.status == 200
    return reply.text


def test_jobs_are_compared_over_the_time_since_their_start(site: PageSite) -> None:
    names = [number_of(site, name) for name in ("train.py", "train-2.py", "stalled.py")]
    query = "&".join(f"jobs={one}" for one in names)
    text = site.ask(f"/cluster/demo/compare?{query}").text
    for number in names:
        assert f'href="/cluster/demo/job/{number}"' in text
    assert "GPU use, mean of cards" in text
    plots = site.ask(f"/data/cluster/demo/compare?{query}").json()["plots"]
    cpu = next(one for one in plots if one["key"] == "cpu")
    assert (cpu["start"], cpu["elapsed"], len(cpu["series"])) == (0, True, 3)


def test_a_comparison_shows_the_chosen_plots(site: PageSite) -> None:
    jobs = f"{number_of(site, 'train.py')},{number_of(site, 'train-2.py')}"
    keys = re.findall(r'data-key="([^"]*)"', compare(site, jobs, plots="cpu,wait-io,nothing"))
    assert keys == ["cpu", "wait-io"]


@pytest.mark.parametrize("jobs", ["", ",", "1", "99", HOSTILE, "1,2,3,4,5,6,7", "9" * 3000])
def test_a_comparison_of_anything_is_a_page(site: PageSite, jobs: str) -> None:
    assert_harmless(compare(site, jobs, plots=HOSTILE))


def test_a_job_page_shows_the_chosen_plots(site: PageSite) -> None:
    path = f"/cluster/demo/job/{number_of(site, 'train.py')}"
    keys = re.findall(r'data-key="([^"]*)"', site.ask(f"{path}?plots=memory&plots=mem_used").text)
    assert keys == ["memory", "mem_used"]
    assert_harmless(site.ask(f"{path}?{urlencode({'plots': HOSTILE})}").text)
    assert len(site.ask(f"{path}?plots={HOSTILE}").text) > 1000


@pytest.mark.parametrize(
    "query",
    [dict.fromkeys(("user", "account", "node", "rule", "sort", "show", *RANGES), HOSTILE),
     {"user": "\0"}, {"sort": "-"}, {"sort": "job; drop table jobs"}, {"nodes": "9" * 40},
     {"page": "2", "cpu": "0-100", "sort": "verdict"}],
)  # fmt: skip
def test_a_list_of_any_address_is_a_page(site: PageSite, query: dict[str, str]) -> None:
    for path in ("/cluster/demo/jobs", "/cluster/demo"):
        reply = site.ask(f"{path}?{urlencode(query)}")
        assert reply.status == 200
        assert_harmless(reply.text)


def test_a_hostile_name_is_found_by_its_link(site: PageSite) -> None:
    text = site.ask("/cluster/demo/jobs?q=99").text
    for name in ("account", "partition"):
        link = re.search(rf'href="(/cluster/demo/jobs\?{name}=[^"]*)"', text)
        assert link
        shown = site.ask(unescape(link[1])).text
        assert_harmless(shown)
        assert "/cluster/demo/job/99" in shown
        # The form sends the same name back, though it can't be shown.
        kept = re.search(rf'<input type="hidden" name="{name}" value="([^"]*)"', shown)
        assert kept
        assert unescape(kept[1]) == HOSTILE


# Access


def test_users_compare_and_filter_their_own_jobs_alone(tmp_path: Path) -> None:
    site = PageSite(tmp_path, has_key=True, settings=WebSettings(), nodes=8, seconds=3600)
    bob = f"Bearer {token(sub='bob', roles=['user'])}"
    own = next(one.number for one in site.cluster.jobs if one.job.user == "bob")
    other = next(one for one in site.cluster.jobs if one.job.user == "dave")
    text = site.ask(f"/cluster/demo/compare?jobs={own},{other.number}", authorization=bob).text
    assert f"/job/{own}" in text
    assert f"/job/{other.number}" not in text
    assert f"No job {other.number} here of yours" in text
    for query in ("user=dave", "sort=-cpu", "show=histograms", "account=chem", "ran=0s-", "cpu=0-",
                  f"node={other.parts[0].node.name}", "verdict=BAD", "sort=user"):  # fmt: skip
        for kind in ("", "/data", "/csv"):
            reply = site.ask(f"{kind}/cluster/demo/jobs?range=48h&{query}", authorization=bob)
            assert reply.status == 200
            text = reply.text
            for asked in (  # by the viewer
                "user=dave", "user%3Ddave", 'name="user" value="dave"', "<bdi>dave</bdi></b>",
            ):  # fmt: skip
                text = text.replace(asked, "")
            assert "dave" not in text
            assert str(other.number) not in reply.text
    for kind in ("/data", "/csv"):
        path = f"{kind}/cluster/demo/compare?jobs={other.number}&plot=cpu"
        assert str(other.number) not in site.ask(path, authorization=bob).text
    assert site.ask("/cluster/demo/compare?jobs=1").status == 302
    assert site.ask("/data/cluster/demo/compare?jobs=1").status == 401
    site.close()


# Roofline


def write_work(site: PageSite, flops: float, traffic: float) -> None:
    """Write the operations and the memory traffic of a node with a job, in GFlops/s and GB/s."""
    for minute in range(1, 40):
        for thread in range(2):
            place = ("demo", "n1", f"hwthread{thread}")
            site.store.write(place, "flops_any", site.now - 60 * minute, flops / 2)
        site.store.write(("demo", "n1", "socket0"), "mem_bw", site.now - 60 * minute, traffic)


def test_a_job_has_a_roofline_where_both_sides_are_measured(tmp_path: Path) -> None:
    site = PageSite(tmp_path, nodes=4, seconds=600, jobs=[])
    site.start(hostile_event(site, 7) | {"resources": [{"hostname": "n1"}]})
    assert "Roofline" not in site.ask("/cluster/demo/job/7").text
    write_work(site, 40.0, 20.0)
    text = site.ask("/cluster/demo/job/7?range=1h").text
    assert "mean 40 GFlops/s at 2 Flops/B; highest 40 GFlops/s and 20 GB/s" in text
    assert len(re.findall(r'<path class="h\d" d="M', text)) > 3
    assert_harmless(text)
    site.close()


@pytest.mark.parametrize("value", [0.0, -1.0, 5e-324, 1e-300, 1e300, 1.7e308, float("inf")])
def test_any_rate_of_work_has_a_page(tmp_path: Path, value: float) -> None:
    site = PageSite(tmp_path, nodes=4, seconds=600, jobs=[])
    site.start(hostile_event(site, 7) | {"resources": [{"hostname": "n1"}]})
    write_work(site, value, 1.0)
    assert site.ask("/cluster/demo/job/7").status == 200
    write_work(site, 1.0, value)
    assert site.ask("/cluster/demo/job/7?range=1h").status == 200
    site.close()


# Partitions


def test_partitions_have_running_and_waiting_jobs(tmp_path: Path) -> None:
    site = PageSite(tmp_path, has_key=True, settings=WebSettings(), nodes=8, seconds=3600)
    details = StoredJobDetails(name=HOSTILE, account=HOSTILE, partition="gpu", cores=128, gpus=4)
    site.table.wait(WaitingJob("demo", "5001", "bob", site.now - 7200, details))
    hostile = StoredJobDetails(name=HOSTILE, account=HOSTILE, partition=HOSTILE)
    site.table.wait(WaitingJob("demo", HOSTILE, HOSTILE, -(10**15), hostile))
    staff = f"Bearer {token(sub='root', roles=['admin'])}"
    text = site.ask("/cluster/demo", authorization=staff).text
    assert_harmless(text)
    rows = re.findall(r"partition=(gpu|normal)&amp;state=running\">.*?</tr>", text)
    assert sorted(rows) == ["gpu", "normal"]
    assert "<td>1</td><td>128</td><td>4</td></tr>" in text
    assert re.search(r"5001 .*2 h ago", text)
    bob = site.ask("/cluster/demo", authorization=f"Bearer {token(sub='bob', roles=['user'])}").text
    carol = site.ask("/cluster/demo", authorization=f"Bearer {token(sub='eve')}").text
    assert ("5001" in bob, "5001" in carol) == (True, False)
    site.close()


# Nodes


def test_nodes_are_sorted_filtered_and_told_as_json(tmp_path: Path) -> None:
    site = PageSite(tmp_path, nodes=8, seconds=3600)
    site.store.write(("demo", "quiet"), "cpu_load", site.now - 3000, 1.0)
    found = site.ask("/data/cluster/demo?state=silent").json()["nodes"]
    assert [one["node"] for one in found] == ["quiet"]
    values = [one["cpu"] for one in site.ask("/data/cluster/demo?sort=-cpu").json()["nodes"]]
    assert values[-1] is None
    assert values[:-1] == sorted(values[:-1], reverse=True)
    named = site.ask("/data/cluster/demo?node=g0&sort=node").json()["nodes"]
    assert [one["node"] for one in named] == ["g001", "g002"]
    assert {len(one["gpus"]) for one in named} == {4}
    (alone,) = site.ask("/data/cluster/demo/node/g001").json()["nodes"]
    assert alone == named[0]
    text = site.ask("/cluster/demo").text
    assert '<a href="/cluster/demo?state=silent#nodes">1 silent</a>' in text
    site.close()


def test_a_page_may_be_asked_for_fresh(site: PageSite) -> None:
    made = site.application._models.made
    for age, more in (("max-age=25", 1), ("max-age=10", 1), ("max-age=0", 1), ("max-age=x", 1)):
        site.ask("/cluster/demo/jobs?q=fresh", cache_control=age)
        assert site.application._models.made == made + more
