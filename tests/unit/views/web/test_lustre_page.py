"""The page of Lustre, with answers that a jobstats store has given."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ccagent.stores.metrics.page_settings import WebSettings
from ccagent.views.web.addresses import job_link
from tests.support.http_server import PASSWORD, Server, say
from tests.support.page_site import PageSite, token

LIVE: dict[str, Any] = {
    "at": "2026-11-23T11:44:00+00:00", "note": "",
    "targets": [
        {"target": "fs-MDT0000", "seconds": 120.0, "read_bytes": 0.0, "write_bytes": 0.0,
         "operations": 753.0, "read_latency": None, "write_latency": None, "before": 3.0,
         "factor": 251.0},
        {"target": "fs-OST0000", "seconds": 120.0, "read_bytes": 0.0, "write_bytes": 1000.0,
         "operations": 1.0, "read_latency": None, "write_latency": 500.0, "before": 1000.0,
         "factor": 1.0},
    ],
    "jobs": [
        {"job": "42", "file_system": "fs", "user": "u-fox", "account": "physics",
         "state": "RUNNING", "nodes": 1, "share": 1.0, "read_bytes": 0.0, "write_bytes": 0.0,
         "metadata": 753.0, "dominant": "open", "dominant_rate": 502.0, "latency": None,
         "since": "2026-11-23T11:40:00+00:00", "factor": 251.0},
    ],
}  # fmt: skip
JOB: dict[str, Any] = {
    "job": "42@", "begins": "2026-11-23T10:00:00+00:00", "ends": "2026-11-23T12:00:00+00:00",
    "slurm": {"cluster": "demo", "user_name": None, "account": "physics"},
    "totals": [], "rates": [],
    "file_systems": [
        {"file_system": "fs", "read_bytes": 0, "write_bytes": 0, "metadata": 921600,
         "latency": None, "bytes_rank": 2, "metadata_rank": 1, "jobs": 2},
    ],
}  # fmt: skip


@pytest.fixture
def store() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def site(tmp_path: Path, store: Server) -> Iterator[PageSite]:
    secret = tmp_path / "token"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    settings = WebSettings(jobstats=f"http://{store.place}", jobstats_token_file=str(secret))
    found = PageSite(tmp_path, nodes=4, seconds=600, settings=settings, has_key=True)
    yield found
    found.close()


def bearer(name: str, role: str) -> str:
    return f"Bearer {token(sub=name, roles=[role])}"


STAFF, USER = bearer("ada", "admin"), bearer("u-fox", "user")


def answer(store: Server, *bodies: object) -> None:
    store.script.extend(say(200, json.dumps(one).encode()) for one in bodies)


def test_targets_and_jobs_are_shown_with_what_is_unusual(site: PageSite, store: Server) -> None:
    answer(store, LIVE)
    text = site.ask("/lustre?at=1795434240", authorization=STAFF).text
    (asked,) = store.requests
    assert asked.path == "/live?sort=share&limit=100&at=2026-11-23T11%3A44%3A00%2B00%3A00"
    assert asked.headers["Authorization"] == f"Bearer {PASSWORD}"
    assert text.count('class="verdict v-hint"') == 2
    for part in ("251 times", "753 /s", "1 kB/s", "500 µs", "open, 502 /s", 'href="/job/42"',
                 'href="/lustre?sort=metadata&amp;at=1795434240"', 'data-fixed="yes"'):  # fmt: skip
        assert part in text


def test_many_viewers_cost_one_question(site: PageSite, store: Server) -> None:
    answer(store, LIVE)
    for number in range(5):
        reply = site.ask("/lustre", authorization=bearer(f"u{number}", "user"))
        assert "No job of yours is active." in reply.text
    assert "u-fox" in site.ask("/lustre", authorization=STAFF).text
    assert len(store.requests) == 1


def test_users_see_jobs_that_slurm_knows_as_theirs(site: PageSite, store: Server) -> None:
    job = LIVE["jobs"][0]
    others = [job | {"job": "43", "user": "bob"}, job | {"job": "44", "state": ""}]
    answer(store, LIVE | {"jobs": [job, *others]})
    assert list(jobs_of(site, USER)) == ["42"]
    assert list(jobs_of(site, STAFF)) == ["42", "43", "44"]


def jobs_of(site: PageSite, authorization: str) -> list[str]:
    found = site.ask("/data/lustre", authorization=authorization).json()
    assert [one["target"] for one in found["targets"]] == ["fs-MDT0000", "fs-OST0000"]
    return [one["job"] for one in found["jobs"]]


def test_texts_of_the_store_are_never_markup(site: PageSite, store: Server) -> None:
    evil = "<script>alert(1)</script>"
    texts = ("job", "file_system", "user", "account", "state", "dominant")
    answer(store, LIVE | {"jobs": [LIVE["jobs"][0] | dict.fromkeys(texts, f"=1{evil}")]})
    text = site.ask("/lustre", authorization=STAFF).text
    assert evil not in text
    assert 'href="/job/~3D1~3Cscript' in text
    lines = site.ask("/csv/lustre", authorization=STAFF).body.decode().splitlines()
    assert all(not cell.startswith("=") for cell in next(csv.reader(lines[1:])))


@pytest.mark.parametrize(
    ("target", "factor", "is_far"),
    [
        ({"factor": 2.9}, "2.9 times", False),
        ({"factor": 3.0}, "3 times", True),
        ({"factor": 0.3}, "▼ 0.3 times", False),
        ({"factor": None, "operations": 0.0}, "▼ 0 times", False),
        ({"factor": None, "before": 0.0}, "new", True),
        ({"factor": None, "before": 0.0, "operations": 0.0}, "idle", False),
    ],
)
def test_a_rate_far_above_the_hour_before_is_marked(
    site: PageSite, store: Server, target: dict[str, Any], factor: str, *, is_far: bool
) -> None:
    answer(store, LIVE | {"targets": [LIVE["targets"][0] | target], "jobs": []})
    text = site.ask("/lustre", authorization=STAFF).text
    assert ("v-hint" in text) is is_far
    assert factor in text


@pytest.mark.parametrize("body", [b"<html>", b'{"at":1}', b"[]", b""])
def test_an_answer_of_another_program_is_one_sentence(
    site: PageSite, store: Server, body: bytes
) -> None:
    store.script.append(say(200, body))
    text = site.ask("/lustre", authorization=STAFF).text
    assert "has not answered: not a response of a jobstats store" in text
    # Nobody asks it again at once, and users are not told where it is.
    text = site.ask("/lustre?sort=bytes", authorization=USER).text
    assert "try again later, or ask the staff" in text
    assert site.ask("/csv/lustre", authorization=STAFF).status == 503
    assert len(store.requests) == 1


def test_a_job_without_an_answer_leaves_the_page_of_lustre(site: PageSite, store: Server) -> None:
    store.script.append(say(503, b'{"error":"busy"}'))
    answer(store, LIVE)
    text = site.ask(job_link("demo", str(site.cluster.jobs[0].number)), authorization=STAFF).text
    assert "The jobstats store has not answered" in text
    assert "251 times" in site.ask("/lustre", authorization=STAFF).text


def test_a_refusal_of_the_store_is_shown(site: PageSite, store: Server) -> None:
    store.script.append(say(400, b'{"error":"at: not a time"}'))
    assert "at: not a time" in site.ask("/lustre", authorization=STAFF).text
    answer(store, LIVE)
    text = site.ask("/lustre?at=never", authorization=STAFF).text
    assert "at is not a valid time" in text


@pytest.mark.parametrize(
    ("slurm", "is_shown"),
    [({}, True), ({"cluster": "demo"}, True), ({"cluster": "owl"}, False),
     ({"cluster": "demo", "user_name": "somebody-else"}, False)],
)  # fmt: skip
def test_a_job_has_its_io_and_not_that_of_its_number(
    site: PageSite, store: Server, slurm: dict[str, str], *, is_shown: bool
) -> None:
    number = site.cluster.jobs[0].number
    store.script.append(say(404, b"{}"))
    answer(store, JOB | {"slurm": slurm})
    text = site.ask(job_link("demo", str(number)), authorization=STAFF).text
    assert [one.path.partition("?")[0] for one in store.requests] == [
        f"/job/{number}%40demo", f"/job/{number}%40",
    ]  # fmt: skip
    assert ("922k" in text or "921,600" in text) is is_shown
    assert ("has no I/O of this job" in text) is not is_shown
    assert 'href="/lustre' in text


def test_without_the_key_there_is_no_page_and_no_link(tmp_path: Path) -> None:
    site = PageSite(tmp_path, nodes=4, seconds=600)
    assert site.ask("/lustre").status == 404
    assert "/lustre" not in site.ask("/cluster/demo").text
    site.close()


def test_keys_of_the_jobstats_store_are_checked() -> None:
    assert WebSettings(jobstats="https://store:8083").problems() == []
    assert WebSettings(jobstats="ftp://store").problems() == [
        "web.jobstats: expected http://HOST:PORT or https://HOST:PORT"
    ]
    assert WebSettings(jobstats="http://").problems() != []
    assert WebSettings(jobstats_token_file="/etc/token").problems() == [
        "web.jobstats: required with its other keys"
    ]
