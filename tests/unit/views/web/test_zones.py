"""Time zones of pages: chosen by name, kept in a cookie, and never in an export."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from html import unescape
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from ccagent.views.web.rendering import find_zone, server_zone
from tests.support.page_site import PageSite

TOKYO = "Asia/Tokyo"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageSite]:
    found = PageSite(tmp_path_factory.mktemp("pages"), nodes=4)
    yield found
    found.close()


def shown_zone(text: str) -> str:
    found = re.search(r"Times in (.*?) \u00b7", text)
    assert found
    return found[1]


def test_pages_are_in_utc_and_say_so(site: PageSite) -> None:
    text = site.ask("/cluster/demo").text
    assert shown_zone(text) == "UTC"
    assert 'data-zone="UTC"' in text
    assert re.search(r"Made at <time>[0-9: -]+</time> UTC\.", text)


@pytest.mark.parametrize("query", ["?tz=Asia/Tokyo", "?tz=Asia%2FTokyo", ""])
def test_a_zone_comes_from_the_query_or_the_cookie(site: PageSite, query: str) -> None:
    cookie = "ccagent-zone=America/New_York" if query else f"ccagent-zone={TOKYO}"
    text = site.ask(f"/cluster/demo{query}", cookie=cookie).text
    assert shown_zone(text) == "Asia/Tokyo (UTC+09:00)"
    made = f"{datetime.fromtimestamp(site.now, ZoneInfo(TOKYO)):%Y-%m-%d %H:%M}"
    assert f"<time>{made}</time>" in text


@pytest.mark.parametrize("path", ["", "/jobs", "/node/c001"])
def test_fields_are_read_in_the_zone_that_they_are_shown_in(site: PageSite, path: str) -> None:
    start, end = site.now // 60 * 60 - 7200, site.now // 60 * 60 - 3600
    text = site.ask(f"/cluster/demo{path}?from={start}&to={end}&tz={TOKYO}").text
    fields = dict(re.findall(r'name="(from|to)" value="([^"]*T[^"]*)"', text))
    assert fields["from"] == f"{datetime.fromtimestamp(start, ZoneInfo(TOKYO)):%Y-%m-%dT%H:%M}"
    assert f'<input type="hidden" name="tz" value="{TOKYO}">' in text
    again = site.ask(f"/cluster/demo{path}?from={fields['from']}&to={fields['to']}&tz={TOKYO}").text
    assert f"from={start}&amp;to={end}" in again


def test_exports_have_no_zone(site: PageSite) -> None:
    cookie = f"ccagent-zone={TOKYO}"
    for path in (
        "/csv/cluster/demo?plot=cpu",
        "/data/cluster/demo?plot=cpu",
        "/csv/cluster/demo/jobs",
    ):
        assert site.ask(path, cookie=cookie).body == site.ask(path).body
    assert "tz=" not in "".join(
        re.findall(r'href="(/(?:csv|data)[^"]*)"', site.ask(f"/cluster/demo?tz={TOKYO}").text)
    )


def test_viewers_of_all_zones_share_the_content(tmp_path: Path) -> None:
    site = PageSite(tmp_path, nodes=2, seconds=600, jobs=[])
    texts = {site.ask(f"/cluster/demo?tz={zone}").text for zone in ("UTC", TOKYO, "Europe/Berlin")}
    assert len(texts) == 3
    assert site.application._models.made == 1
    site.close()


@pytest.mark.parametrize(
    "name",
    ["../../../etc/passwd", "/etc/localtime", "Europe", "posix/Japan", "posixrules", "A" * 5000,
     "Europe/Berlin\0", "<script>", "Mars/Phobos", "utc", "..", "Europe/../UTC", "\ud800", ""],
)  # fmt: skip
def test_other_names_are_no_zones(name: str) -> None:
    assert find_zone(name) is None


def test_an_unknown_zone_is_said_and_shows_utc(site: PageSite) -> None:
    for name in ("Mars/Phobos", "%3Cscript%3E", "..%2F..%2Fetc%2Fpasswd"):
        text = site.ask(f"/cluster/demo/jobs?tz={name}").text
        assert shown_zone(text) == "UTC"
        assert "tz is not a known time zone" in text
        assert "Phobos" not in text
    assert "not a known" not in site.ask("/cluster/demo", cookie="ccagent-zone=Mars/Phobos").text


def test_a_choice_is_kept_and_leads_back(site: PageSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", TOKYO)
    text = site.ask("/cluster/demo?range=6h&tz=Europe/Berlin").text
    link = re.search(r'href="(/zone[^"]*)">UTC<', text)
    assert link
    reply = site.ask(unescape(link[1]))
    assert reply.headers["location"] == "/cluster/demo?range=6h"
    assert reply.headers["set-cookie"].startswith("ccagent-zone=UTC;")
    link = re.search(r'href="(/zone[^"]*)">local time<', site.ask("/cluster/demo").text)
    assert link
    assert "Asia/Tokyo" in site.ask(unescape(link[1])).headers["set-cookie"]
    monkeypatch.setenv("TZ", "UTC")
    assert 'zone="";' in site.ask(unescape(link[1])).headers["set-cookie"]  # scripts set it again
    assert site.ask("/zone?tz=UTC&next=//evil.example").headers["location"] == "/"


@pytest.mark.parametrize(
    ("text", "name"), [(TOKYO, TOKYO), (f":{TOKYO}", TOKYO), ("CET-1CEST,M3.5.0", "UTC")]
)
def test_the_zone_of_this_machine_has_a_name(
    text: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", text)
    assert server_zone() == name
