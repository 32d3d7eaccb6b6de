"""`ccagent store metrics --web`: pages of what a store receives, and who may see them."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.metric_store import RunningStore
from tests.support.page_site import public_key, token
from tests.support.upgrades import PREFACE, ask_for_upgrades, ask_with_curl, statuses

USER = {"Authorization": f"Bearer {token(sub='eve', roles=['user'])}"}
STAFF = {"Authorization": f"Bearer {token(sub='ada', roles=['admin'])}"}
SECRET = "a-secret-of-the-proxy"


class Pages:
    """Asks the pages of a store."""

    def __init__(self, store: RunningStore) -> None:
        found = re.search(r"pages at (http://\S+)/\n", store.log.read_text())
        assert found
        self.url = found[1]

    def get(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        request = urllib.request.Request(f"{self.url}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    directory = tmp_path_factory.mktemp("store")
    secret = directory / "secret"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    (directory / "store.toml").write_text(
        f'jwt-public-key = "{public_key()}"\n'
        f'[web]\nproxies = ["127.0.0.1"]\nproxy-secret-file = "{secret}"\nstaff = ["root"]\n'
    )
    options = ("--config", str(directory / "store.toml"), "--web", "127.0.0.1:0")
    with RunningStore(directory, *options) as running:
        now = int(time.time())
        lines = "".join(
            f"{metric},hostname=n1,type=node,stype=job,stype-id=7 value={value} {now - 60 * step}\n"
            for step in range(1, 60)
            for metric, value in (("job_cpu_util", 390), ("job_mem_rss", 3), ("job_mem_limit", 4))
        )
        assert running.ask("POST", "/api/write/?cluster=fox", lines, STAFF).status == 200
        started = datetime.fromtimestamp(now - 1800, UTC).isoformat()
        job = {
            "job_id": 7, "job_name": "relax", "job_state": "RUNNING", "user_name": "eve",
            "nodes": ["n1"], "start_time": started, "allocated_resources": "cpu=4,mem=4G,node=1",
        }  # fmt: skip
        long = {"job_id": 9, "job_name": "x" * 1000, "user_name": "u" * 200, "account": "a" * 200}
        jobs = [job, job | {"job_id": 8, "user_name": "bob"}, job | long]
        envelope = {"data": {"attributes": {"cluster": "fox", "slurm_jobs": jobs}}}
        assert running.ask("POST", "/api/jobs/", json.dumps(envelope), STAFF).status == 200
        yield running
        running.stop()


def test_a_page_shows_what_the_store_has_received(store: RunningStore) -> None:
    status, text = Pages(store).get("/cluster/fox/job/7", STAFF)
    assert status == 200
    assert "relax" in text
    assert "mean 3.9, from 3.9 to 3.9" in text
    assert "2.79 GiB of 3.73 GiB" in text


def test_an_upgrade_is_ignored(store: RunningStore) -> None:
    pages = Pages(store)
    port = urllib.parse.urlsplit(pages.url).port or 0
    assert ask_with_curl(f"{pages.url}/login") == 200
    # Only the body of a login has its token.
    form = b"token=" + STAFF["Authorization"].removeprefix("Bearer ").encode()
    line = b"POST /login HTTP/1.1\r\nOrigin: http://x\r\nSec-Fetch-Site: same-origin"
    found = ask_for_upgrades(port, line, form)
    assert [one[0] for one in found] == [303] * 8
    assert {len(one) for one in found} == {2}
    assert statuses(port, PREFACE) == [400]


def test_users_see_their_own_jobs_alone(store: RunningStore) -> None:
    pages = Pages(store)
    assert [pages.get(f"/cluster/fox/job/{n}", USER)[0] for n in (7, 8)] == [200, 403]
    assert [pages.get(f"/cluster/fox/job/{n}", STAFF)[0] for n in (7, 8)] == [200, 200]
    assert "Token of the store" in pages.get("/cluster/fox", {})[1]


def test_a_proxy_names_the_user(store: RunningStore) -> None:
    pages = Pages(store)
    named = {"X-Remote-User": "eve", "X-Ccagent-Secret": SECRET}
    assert [pages.get(f"/cluster/fox/job/{n}", named)[0] for n in (7, 8)] == [200, 403]
    assert pages.get("/cluster/fox/job/8", named | {"X-Remote-User": "root"})[0] == 200
    wrong = named | {"X-Ccagent-Secret": "guessed", "X-Remote-User": "root"}
    assert pages.get("/data/cluster/fox/job/8", wrong)[0] == 401


def test_a_proxy_on_the_same_machine_may_keep_its_own_name(store: RunningStore) -> None:
    named = {"X-Remote-User": "eve", "X-Ccagent-Secret": SECRET, "Host": "pages.example.org"}
    assert Pages(store).get("/cluster/fox/job/7", named)[0] == 200


def test_a_link_on_another_site_leads_to_a_page_without_a_new_login(
    store: RunningStore, browser: Browser, tmp_path: Path
) -> None:
    url = Pages(store).url
    place = tmp_path / "mail.html"
    place.write_text(f'<a href="{url}/cluster/fox/job/7">your job</a>')
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{url}/cluster/fox/job/7")
    page.get_by_label("Token of the store").fill(token(sub="eve", roles=["user"]))
    page.get_by_role("button", name="Log in").click()
    assert page.locator("h1").inner_text().startswith("Job 7")
    page.goto(place.as_uri())
    page.get_by_text("your job").click()
    page.wait_for_url(f"{url}/**")
    assert page.locator("h1").inner_text().startswith("Job 7")
    context.close()


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("path", ["", "/jobs", "/job/9", "/node/n1"])
def test_a_long_name_makes_no_page_wider(
    store: RunningStore, browser: Browser, path: str, width: int
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, extra_http_headers=STAFF
    )
    page = context.new_page()
    page.goto(f"{Pages(store).url}/cluster/fox{path}")
    assert "u" * 200 in page.content()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_a_user_asks_the_api_for_own_jobs_alone(store: RunningStore) -> None:
    own, other = (store.ask("GET", f"/api/job/?job={n}", "", USER) for n in (7, 8))
    assert [len(json.loads(one.body)) for one in (own, other)] == [1, 0]
    query = {"metric": "job_cpu_util", "host": "n1", "type": "job"}
    for number, status in (("7", 200), ("8", 403)):
        body = {"cluster": "fox", "from": int(time.time()) - 3600, "to": int(time.time()),
                "queries": [query | {"type-ids": [number]}]}  # fmt: skip
        assert store.ask("GET", "/api/query/", json.dumps(body), USER).status == status


def test_a_user_has_the_report_of_an_own_job(store: RunningStore, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(sub="eve", roles=["user"]))
    file.chmod(0o600)

    def ask(number: str) -> subprocess.CompletedProcess[str]:
        config = tmp_path / "views.toml"
        config.write_text(
            f'store = "http://127.0.0.1:{store.port}"\ntoken-file = "{file}"\n'
            "allow-cleartext = true\n"
        )
        return subprocess.run(
            [sys.executable, "-m", "ccagent", "job", number, "--config", str(config), "--json"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    own = ask("7")
    assert own.returncode == 0, own.stderr
    assert json.loads(own.stdout)["efficiency"]["cpu"]["percent"] == pytest.approx(97.5)
    other = ask("8")
    assert (other.returncode, "unknown to" in other.stderr) == (1, True)


def test_no_secret_is_in_the_log(store: RunningStore) -> None:
    said = store.log.read_text()
    assert SECRET not in said
    assert "eyJ" not in said  # the beginning of a token


@pytest.mark.parametrize(
    ("options", "reason"),
    [(["--web", "127.0.0.1:TAKEN"], "address already in use"), (["--web", "nowhere"], "web.listen"),
     (["--web", "203.0.113.7:0"], "assign requested address")],
)  # fmt: skip
def test_pages_that_can_t_be_served_end_the_store(
    tmp_path: Path, options: list[str], reason: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "ccagent", "store", "metrics", "--data", str(tmp_path),
             "--listen", "127.0.0.1:0", *(one.replace("TAKEN", port) for one in options)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
