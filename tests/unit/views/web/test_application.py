"""The pages, asked without a socket: what each shows, and what none does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from ccagent.stores.metrics.job_table import StoredJob
from ccagent.stores.metrics.page_settings import WebSettings
from tests.support.page_site import PageReply, PageSite, token

HOSTILE = "<script>alert(1)</script>\"'\u202egnp.exe"
EVIL_NODE = "../<img src=x onerror=alert(1)>"


def hostile_event(site: PageSite, number: int = 99) -> dict[str, object]:
    return {
        "jobId": number, "cluster": "demo", "user": "'; drop table jobs; --", "project": HOSTILE,
        "partition": HOSTILE, "startTime": site.now - 3000, "numHwthreads": 4, "walltime": 7200,
        "metaData": {"jobName": HOSTILE},
        "resources": [{"hostname": EVIL_NODE, "hwthreads": [0, 1]}],
    }  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageSite]:
    found = PageSite(tmp_path_factory.mktemp("pages"))
    found.start(hostile_event(found))
    for metric in ("cpu_user", "</title><script>alert(2)</script>", "../../etc/passwd"):
        found.store.write(("demo", EVIL_NODE), metric, found.now - 60, 5.0)
        found.store.write(("demo", EVIL_NODE, "job99"), metric, found.now - 60, 5.0)
    yield found
    found.close()


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[PageSite]:
    found = PageSite(
        tmp_path, has_key=True, settings=WebSettings(staff=["root"]), nodes=8, seconds=3600
    )
    yield found
    found.close()


def link_of(reply: PageReply, text: str) -> str:
    found = re.search(rf'href="([^"]+)">(?:<bdi>)?{re.escape(text)}', reply.text)
    assert found, reply.text
    return found[1].replace("&amp;", "&")


def test_the_front_leads_to_the_only_cluster(site: PageSite) -> None:
    reply = site.ask("/")
    assert (reply.status, reply.headers["location"]) == (302, "/cluster/demo")


def test_the_cluster_page_says_what_is_free_and_who_needs_advice(site: PageSite) -> None:
    text = site.ask("/cluster/demo").text
    for part in ("Cores", "Memory", "GPUs", "Power", "Nodes", "Jobs that need advice", "Top users",
                 "CPU use, mean of nodes", "Simulated."):  # fmt: skip
        assert part in text
    assert re.search(r"[\d,]+ of [\d,]+ allocated", text)
    assert "BAD" in text


def test_the_cluster_page_leads_to_the_jobs_of_its_time(site: PageSite) -> None:
    times = f"from={site.now - 7200}&amp;to={site.now}"
    text = site.ask(f"/cluster/demo?{unescape(times)}").text
    counts: list[int] = []
    for level, name in (("BAD", "BAD"), ("hint", "hints?")):
        link = re.escape(f'href="/cluster/demo/jobs?verdict={level}&amp;{times}"')
        found = re.search(rf"{link}>(\d+) {name}</a>", text)
        assert found
        counts.append(int(found[1]))
    assert re.search(rf"<p>{sum(counts)} of \d+ jobs of this time need advice:", text)


def test_every_page_of_simulated_clusters_says_so(site: PageSite) -> None:
    job = site.cluster.jobs[0]
    for path in ("/cluster/demo", "/cluster/demo/jobs", "/cluster/demo/node/c001",
                 f"/cluster/demo/job/{job.number}"):  # fmt: skip
        reply = site.ask(path)
        assert reply.status == 200
        assert "<b>Simulated.</b>" in reply.text


def test_the_job_page_has_report_meters_and_plots(site: PageSite) -> None:
    placed = next(one for one in site.cluster.jobs if one.job.shows == "gpu-idle")
    text = site.ask(f"/cluster/demo/job/{placed.number}").text
    assert "[gpu-idle]" in text
    for title in ("Cores in use", "Memory of programs", "GPU use", "Read from block devices"):
        assert title in text
    assert "cores that the job has" in text
    assert f"Job {placed.number} {placed.job.name}" in text  # the report as text


def test_what_happens_to_a_job_is_said_in_words(site: PageSite) -> None:
    assert "too short" in site.ask(f"/cluster/demo/job/{number_of(site, 'test.sh')}").text
    unknown = site.ask("/cluster/demo/job/1")
    assert (unknown.status, "Not found" in unknown.text) == (404, True)


def number_of(site: PageSite, name: str) -> int:
    return next(one.number for one in site.cluster.jobs if one.job.name == name)


def test_a_job_older_than_the_values_has_its_summary(tmp_path: Path) -> None:
    found = PageSite(tmp_path, nodes=4, seconds=3600, jobs=[])
    event = hostile_event(found, 7) | {"startTime": found.now - 900_000}
    found.start(event)
    stopped = found.table.stop("demo", "7", 0, found.now - 800_000, "completed")
    assert stopped is not None
    found.table.keep_footprint(stopped, {"job_mem_rss": {"avg": 2.0, "min": 1.0, "max": 3.0}})
    text = found.ask("/cluster/demo/job/7").text
    assert "values are kept for" in text
    assert "2.79 GiB" in text
    found.close()


def test_the_node_page_has_its_jobs_and_metrics(site: PageSite) -> None:
    text = site.ask("/cluster/demo/node/g001").text
    for part in (
        "GPU 0",
        "Use of each hardware thread",
        "cpu_load",
        "mem_used",
        "hardware threads",
    ):
        assert part in text


def sentence_of(text: str, key: str) -> str:
    found = re.search(rf'<figure class="plot" id="plot-{key}".*?<p>(.*?)</p>', text, re.DOTALL)
    assert found, key
    return found[1]


def write_cards(site: PageSite, node: str, minutes: list[range]) -> None:
    """Write the use of cards of a node, each at its minutes before now."""
    for number, each in enumerate(minutes):
        for minute in each:
            card = ("demo", node, f"accelerator{number}")
            for metric in ("acc_utilization", "acc_power"):
                site.store.write(card, metric, site.now - 60 * minute, 10.0 * (number + 1))


@pytest.mark.parametrize(
    ("last", "coverage"),
    [
        ([range(90, 10, -1)], "coverage 3 of 4 parts"),  # one card ended ten minutes early
        ([range(20, 0, -1)], "coverage 3 of 4 parts"),  # one card started late
        ([range(90, 1, -1)], ""),  # its newest value has not arrived yet
        ([range(90, 0, -3)], ""),  # it has gaps, as a slow sender
        ([range(90, 0, -1)] * 12 + [range(50, 40, -1)], "coverage 15 of 16 parts"),
    ],
    ids=["ends early", "starts late", "newest", "gaps", "many"],
)
def test_plots_of_a_node_say_which_parts_are_missing(
    last: list[range], coverage: str, tmp_path: Path
) -> None:
    found = PageSite(tmp_path, nodes=1, seconds=5400, jobs=[])
    write_cards(found, "x1", [*[range(90, 0, -1)] * 3, *last])
    text = found.ask("/cluster/demo/node/x1").text
    said = sentence_of(text, "acc_utilization")
    assert ("coverage" in said, coverage in said) == (bool(coverage), True)
    found.close()


def test_pages_say_which_cards_a_mean_lacks(tmp_path: Path) -> None:
    found = PageSite(tmp_path, nodes=1, seconds=5400, jobs=[])
    write_cards(found, "x1", [range(90, 0, -1), range(90, 0, -1), range(90, 30, -1)])
    cards = {"hostname": "x1", "hwthreads": [0, 1], "accelerators": ["0", "1", "2"]}
    found.start(hostile_event(found, 7) | {"startTime": found.now - 5400, "resources": [cards]})
    job = found.ask("/cluster/demo/job/7").text
    assert "coverage 2 of 3 GPUs" in sentence_of(job, "gpu")
    cluster = found.ask("/cluster/demo").text
    assert "coverage 2 of 3 GPUs" in sentence_of(cluster, "gpu")
    assert '<span class="of">2 of 3 parts</span>' in cluster  # in the table of nodes
    assert "of 1 of 2 nodes" in cluster  # x1 sends no values of its processors
    node = found.ask("/cluster/demo/node/x1").text
    assert "processors, memory and cards; coverage 2 of 3 parts" in node
    found.close()


def test_a_silent_node_says_since_when(tmp_path: Path) -> None:
    found = PageSite(tmp_path, nodes=4, seconds=3600, jobs=[])
    found.now += 1800
    text = found.ask("/cluster/demo/node/c001").text
    assert "silent" in text
    assert re.search(r"newest value is 3\d min old", text)
    assert "0 up" in found.ask("/cluster/demo").text
    found.close()


@pytest.mark.parametrize(
    "path",
    ["/cluster/demo", "/cluster/demo/jobs", "/cluster/demo/job/99", "/cluster/demo/jobs?q=99",
     f"/cluster/demo/jobs?{urlencode({'q': HOSTILE, 'state': HOSTILE, 'verdict': HOSTILE})}",
     f"/cluster/demo?range={quote(HOSTILE)}", f"/cluster/demo/jobs?page={quote(HOSTILE)}",
     "/cluster/demo/job/99?zoom=1"],
)  # fmt: skip
def test_hostile_names_are_text(site: PageSite, path: str) -> None:
    reply = site.ask(path)
    assert reply.status == 200
    assert_harmless(reply.text)


def assert_harmless(text: str) -> None:
    assert not re.search(r"<script(?! src=\"/static/)", text)
    assert "<img" not in text
    assert "\u202e" not in text
    assert not re.search(r"\son\w+=", re.sub(r"&lt;.*?&gt;", "", text))
    assert " style=" not in text


def test_a_node_of_any_name_has_a_page(site: PageSite) -> None:
    link = link_of(site.ask("/cluster/demo/job/99"), "../&lt;img")
    assert link == "/cluster/demo/node/~2E~2E~2F~3Cimg~20src~3Dx~20onerror~3Dalert~281~29~3E"
    reply = site.ask(link)
    assert reply.status == 200
    assert "&lt;/title&gt;&lt;script&gt;alert(2)" in reply.text
    assert_harmless(reply.text)


@pytest.mark.parametrize(
    "path",
    ["/static/x/../../../etc/passwd", "/cluster/demo/node/..%2f..%2fetc%2fpasswd",
     "/cluster/demo/node/~2E~2E~2Fetc~2Fpasswd", "/static//pages.css", "/bokeh/x/bokeh.min.js",
     "/bokeh/x/../../server.py", "/cluster/~2E~2E", "/cluster/~FF~FE", "/cluster/demo/job/~00",
     "/cluster/demo/job/99/0", "/nothing",
     "/csv/cluster/demo?plot=../../etc/passwd", "/csv/cluster/demo?plot="],
)  # fmt: skip
def test_what_is_not_there_is_not_found(site: PageSite, path: str) -> None:
    assert site.ask(path).status == 404


def test_each_answer_forbids_what_pages_never_do(site: PageSite) -> None:
    for path in ("/cluster/demo", "/nothing", "/data/cluster/demo", "/search?q=x", "/login"):
        headers = site.ask(path).headers
        policy = headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "style-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "cache-control" in headers
    zoomed = site.ask("/cluster/demo?zoom=1").headers["content-security-policy"]
    assert "script-src 'self';" in zoomed


def test_the_json_has_at_most_600_points_a_series(site: PageSite) -> None:
    number = number_of(site, "relax.sh")
    plots = site.ask(f"/data/cluster/demo/job/{number}?from={site.now - 864000}").json()["plots"]
    assert plots
    for plot in plots:
        for series in plot["series"]:
            assert len(series["mean"]) == len(series["min"]) == len(series["max"]) <= 600
    assert any(None in series["mean"] for plot in plots for series in plot["series"])
    assert [one["key"] for one in site.ask("/data/cluster/demo?plot=cpu").json()["plots"]] == [
        "cpu"
    ]


def test_what_the_browser_has_is_not_sent_again(site: PageSite) -> None:
    for path in ("/cluster/demo", "/data/cluster/demo"):
        first = site.ask(path, accept_encoding="gzip")
        assert first.headers["content-encoding"] == "gzip"
        again = site.ask(path, if_none_match=first.headers["etag"])
        assert (again.status, again.body) == (304, b"")


def test_csv_has_the_values_and_no_formula(site: PageSite) -> None:
    reply = site.ask("/csv/cluster/demo?plot=cpu")
    head, first, *_ = reply.text.splitlines()
    assert head == "time,series,min [%],mean [%],max [%]"
    assert len(first.split(",")) == 6  # the name has a comma between quotation marks
    assert reply.headers["content-disposition"] == 'attachment; filename="cpu.csv"'
    site.start(hostile_event(site, 98) | {"user": "=cmd()", "jobId": 98})
    assert "'=cmd()" in site.ask("/csv/cluster/demo/jobs?q=98").text


def test_lists_are_filtered_by_their_address(site: PageSite) -> None:
    found = site.ask("/data/cluster/demo/jobs?verdict=BAD").json()["jobs"]
    assert {one["verdict"] for one in found} == {"BAD"}
    assert {one["user"] for one in site.ask("/data/cluster/demo/jobs?q=dave").json()["jobs"]} == {
        "dave"
    }
    running = site.ask("/data/cluster/demo/jobs?state=running").json()["jobs"]
    assert {one["state"] for one in running} == {"RUNNING"}


def test_searching_leads_to_the_thing(site: PageSite) -> None:
    number = str(site.cluster.jobs[0].number)
    places = {
        number: f"/cluster/demo/job/{number}",
        "g001": "/cluster/demo/node/g001",
        "dave": "/cluster/demo/jobs?q=dave",
    }
    for text, place in places.items():
        assert site.ask(f"/search?q={text}").headers.get("location", "").startswith("/")
        reply = site.ask(f"/search?q={text}&cluster=demo")
        assert reply.headers["location"] == place
    assert site.ask(f"/job/{number}").headers["location"] == f"/cluster/demo/job/{number}"


def test_a_foreign_name_of_this_server_is_refused(tmp_path: Path) -> None:
    found = PageSite(tmp_path, nodes=4, seconds=600, jobs=[], hosts=("localhost", "127.0.0.1"))
    assert found.ask("/cluster/demo", host="evil.example").status == 400
    assert found.ask("/cluster/demo", host="").status == 400
    assert found.ask("/cluster/demo", host="[::1]:8083").status == 400
    assert found.ask("/cluster/demo", host="127.0.0.1:8083").status == 200
    found.close()


def test_an_error_that_nobody_foresaw_costs_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = PageSite(tmp_path, nodes=4, seconds=600, jobs=[])

    async def fail(_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(found.sources.newest, "of_cluster", fail)
    reply = found.ask("/cluster/demo")
    assert reply.status == 500
    assert "see its log" in reply.text
    assert "secret" not in reply.text
    assert "script-src 'self';" in reply.headers["content-security-policy"]
    assert found.ask("/cluster/demo/jobs").status == 200
    assert "secret" in caplog.text
    found.close()


@pytest.mark.parametrize(
    "query",
    ["range=9999d", "from=0&to=99999999999", "from=1&to=2", "from=99999999990", "range=1m",
     "to=9999-12-31T23:59", "from=0001-01-01"],
)  # fmt: skip
def test_any_time_costs_as_little_as_what_is_kept(site: PageSite, query: str) -> None:
    for path in ("/cluster/demo", "/cluster/demo/node/g001", "/cluster/demo/jobs"):
        assert site.ask(f"{path}?{query}").status == 200
    for plot in site.ask(f"/data/cluster/demo/node/g001?{query}&plot=cpu_load").json()["plots"]:
        assert all(len(one["mean"]) <= 600 for one in plot["series"])


@pytest.mark.parametrize(
    ("start", "stop"), [(10**17, None), (0, 2**53), (-(10**17), -(10**16)), (2_000_000_000, 1)]
)
def test_a_job_of_any_time_has_a_page(tmp_path: Path, start: int, stop: int | None) -> None:
    found = PageSite(tmp_path, nodes=4, seconds=600, jobs=[])
    state = "running" if stop is None else "completed"
    found.table.start(StoredJob("demo", "7", "eve", state, start, stop, ("g001",)))
    for path in ("/cluster/demo/job/7", "/job/7",
                 "/cluster/demo/jobs?from=0", "/cluster/demo"):  # fmt: skip
        assert found.ask(path).status in {200, 302}
    found.close()


@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 5e-324, float("inf"), 1e300])
def test_a_value_of_any_size_has_a_page(tmp_path: Path, value: float) -> None:
    found = PageSite(tmp_path, nodes=4, seconds=600, jobs=[])
    found.start(hostile_event(found, 7) | {"resources": [{"hostname": "n1"}]})
    for metric in ("cpu_load", "mem_used", "mem_available", "node_power"):
        found.store.write(("demo", "n1"), metric, found.now - 60, value)
    for metric in ("job_cpu_util", "job_mem_rss", "job_mem_limit", "job_io_read"):
        for minute in range(1, 20):
            found.store.write(("demo", "n1", "job7"), metric, found.now - 60 * minute, value)
    for path in ("/cluster/demo", "/cluster/demo/node/n1", "/cluster/demo/job/7",
                 "/cluster/demo/jobs", "/data/cluster/demo/job/7"):  # fmt: skip
        assert found.ask(path).status == 200
    found.close()


def test_the_csv_of_a_plot_of_any_name_is_found(tmp_path: Path) -> None:
    found = PageSite(tmp_path, nodes=4, seconds=600, jobs=[])
    found.store.write(("demo", "c001"), "a&b, c+d#", found.now - 60, 5.0)
    link = re.search(r'href="(/csv/[^"]*plot=a[^"]*)"', found.ask("/cluster/demo/node/c001").text)
    assert link
    assert found.ask(unescape(link[1])).text.splitlines()[1].endswith(",5.0,5.0,5.0")
    found.close()


def test_a_page_holds_nothing_of_the_address_of_others(site: PageSite) -> None:
    found = site.ask("/cluster/demo?range=12h&unknown=x%22onload")
    assert "unknown=" not in found.text
    assert "onload" not in found.text
    assert "/csv/cluster/demo?range=12h&amp;plot=cpu" in found.text


def test_a_node_with_many_jobs_counts_all(tmp_path: Path) -> None:
    found = PageSite(tmp_path, nodes=4, seconds=600, jobs=[])
    for number in range(1, 121):
        found.start(
            {"jobId": number, "cluster": "demo", "user": "eve", "startTime": found.now - 500,
             "resources": [{"hostname": "c001", "hwthreads": [number]}]}
        )  # fmt: skip
    text = found.ask("/cluster/demo/node/c001").text
    assert re.search(r"120 of \d+ cores allocated", text)
    assert ">70 more</a>" in text
    found.close()


def test_a_node_that_sends_only_values_of_jobs_has_no_age(tmp_path: Path) -> None:
    found = PageSite(tmp_path, nodes=4, seconds=600, jobs=[])
    found.store.write(("demo", "n1", "job7"), "job_mem_rss", found.now - 60, 5.0)
    assert "has sent no value of its own" in found.ask("/cluster/demo/node/n1").text
    assert "days" not in found.ask("/cluster/demo").text
    found.close()


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/favicon.ico", 404), ("GET", "//cluster/demo", 404), ("POST", "/cluster/demo", 405),
])  # fmt: skip
def test_an_address_that_is_none_has_a_page(
    site: PageSite, method: str, path: str, status: int
) -> None:
    reply = site.ask(path, method=method)
    assert (reply.status, "All clusters" in reply.text) == (status, True)
    assert ("allow" in reply.headers) is (status == 405)


# Access


def test_without_a_token_there_is_a_login(closed: PageSite) -> None:
    reply = closed.ask("/cluster/demo?range=6h")
    assert reply.status == 302
    assert reply.headers["location"] == "/login?next=%2Fcluster%2Fdemo%3Frange%3D6h"
    assert closed.ask("/data/cluster/demo").status == 401
    assert closed.ask("/csv/cluster/demo?plot=cpu").status == 401
    assert "Token of the store" in closed.ask("/login").text


def test_users_see_their_own_jobs_and_staff_those_of_all(closed: PageSite) -> None:
    bob, staff = token(sub="bob", roles=["user"]), token(sub="root", roles=["user"])
    own = next(one for one in closed.cluster.jobs if one.job.user == "bob")
    other = next(one for one in closed.cluster.jobs if one.job.user != "bob" and one.stop is None)

    def status(number: int, given: str) -> int:
        path = f"/cluster/demo/job/{number}"
        found = {closed.ask(f"{kind}{path}?plot=cpu", authorization=f"Bearer {given}").status
                 for kind in ("", "/data", "/csv")}  # fmt: skip
        (only,) = found
        return only

    assert [status(own.number, bob), status(other.number, bob)] == [200, 403]
    assert [status(own.number, staff), status(other.number, staff)] == [200, 200]
    listed = closed.ask("/data/cluster/demo/jobs", authorization=f"Bearer {bob}").json()["jobs"]
    assert {one["user"] for one in listed} == {"bob"}
    for path in ("/cluster/demo", f"/cluster/demo/node/{other.parts[0].node.name}",
                 f"/cluster/demo/jobs?q={other.number}"):  # fmt: skip
        text = closed.ask(path, authorization=f"Bearer {bob}").text
        assert f">{other.number}<" not in text
        assert f">{other.job.user}<" not in text
        assert f"/job/{other.number}" not in text
    found = closed.ask(f"/search?q={other.number}&cluster=demo", authorization=f"Bearer {bob}")
    assert found.headers["location"].startswith("/cluster/demo/jobs?")
    assert closed.ask(f"/job/{other.number}", authorization=f"Bearer {bob}").status == 404


def test_a_token_without_a_name_sees_no_job(closed: PageSite) -> None:
    nobody = f"Bearer {token(roles=['user'])}"
    closed.start(hostile_event(closed, 77) | {"user": ""})
    assert closed.ask("/data/cluster/demo/jobs", authorization=nobody).json()["jobs"] == []
    text = closed.ask("/cluster/demo", authorization=nobody).text
    assert "/job/" not in text
    assert "No jobs of yours" in text


def log_in(site: PageSite, given: str, next_page: str = "/", **headers: Any) -> PageReply:
    body = urlencode({"token": given, "next": next_page}).encode()
    return site.ask("/login", method="POST", body=body, **headers)


def test_a_login_keeps_the_token_where_no_script_reads_it(closed: PageSite) -> None:
    reply = log_in(closed, token(sub="bob"), "/cluster/demo", sec_fetch_site="same-origin")
    assert (reply.status, reply.headers["location"]) == (303, "/cluster/demo")
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    session = cookie.partition(";")[0]
    assert "bob" in closed.ask("/cluster/demo", cookie=session).text
    out = closed.ask("/logout", method="POST", cookie=session, sec_fetch_site="same-origin")
    assert 'ccagent-session=""' in out.headers["set-cookie"]


def test_behind_tls_the_token_is_sent_over_it_alone(tmp_path: Path) -> None:
    site = PageSite(tmp_path, has_key=True, settings=WebSettings(behind_tls=True))
    reply = log_in(site, token(sub="bob"), sec_fetch_site="same-origin")
    site.close()
    assert "; Secure" in reply.headers["set-cookie"]


@pytest.mark.parametrize(
    "headers",
    [{"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"}, {"sec_fetch_site": "none"},
     {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://["}, {}],
)  # fmt: skip
def test_forms_of_other_sites_are_refused(closed: PageSite, headers: dict[str, Any]) -> None:
    reply = log_in(closed, token(sub="bob"), **headers)
    assert reply.status == 403
    assert "set-cookie" not in reply.headers
    assert closed.ask("/logout", method="POST", **headers).status == 403


def test_a_form_of_this_server_is_known_by_its_origin(closed: PageSite) -> None:
    assert log_in(closed, token(sub="bob"), origin="http://store.example").status == 303


@pytest.mark.parametrize(
    "place", ["//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil",
              "javascript:x", "/a\nb", ""]
)  # fmt: skip
def test_a_login_leads_to_no_other_server(closed: PageSite, place: str) -> None:
    reply = log_in(closed, token(sub="bob"), place, sec_fetch_site="same-origin")
    assert reply.headers["location"] == "/"


def test_a_token_that_no_browser_keeps_is_refused(closed: PageSite) -> None:
    reply = log_in(closed, token(sub="bob", x="y" * 4000), sec_fetch_site="same-origin")
    assert (reply.status, "browsers do not store it" in reply.text) == (403, True)


def test_a_search_does_not_tell_the_cluster_of_the_jobs_of_others(closed: PageSite) -> None:
    other = {"jobId": 78, "cluster": "secret", "user": "ada", "startTime": closed.now - 60,
             "resources": [{"hostname": "n1"}]}  # fmt: skip
    closed.start(other)
    bob = f"Bearer {token(sub='bob', roles=['user'])}"
    assert closed.ask("/search?q=78", authorization=bob).headers["location"] == "/"


def test_a_bad_login_says_why_and_shows_no_token(closed: PageSite) -> None:
    reply = log_in(closed, "a.b.c", sec_fetch_site="same-origin")
    assert reply.status == 403
    assert "token" in reply.text
    assert "a.b.c" not in reply.text
    again = log_in(closed, "a.b.c", "/cluster/demo/job/7", sec_fetch_site="same-origin")
    assert 'name="next" value="/cluster/demo/job/7"' in again.text
    huge = closed.ask("/login", method="POST", body=b"x" * 100_000, sec_fetch_site="same-origin")
    assert huge.status == 403
