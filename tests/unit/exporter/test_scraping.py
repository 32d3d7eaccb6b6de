"""Scrapes: a collector that fails or hangs costs its own families."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.errors import NotHereError, UnparsableError
from ccagent.exporter import scraping
from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import Family, Rows, gauge, join_text
from ccagent.exporter.scraping import Scraper
from ccagent.exporter.settings import ExporterSettings
from ccagent.exporter.sources import NodeSources
from ccagent.machine.node import Node
from tests.support.exposition import values

FAMILIES = {name: gauge(f"test_{name}", "x") for name in ("good", "other", "hanging", "bad")}


class Scripted(Collector):
    """Does what the test says."""

    def __init__(self, name: str, error: Exception | None = None, *, hangs: bool = False) -> None:
        settings = ExporterSettings()
        super().__init__(settings, NodeSources(settings))
        self.own = name
        self.error = error
        self.hangs = hangs
        self.go_on = threading.Event()
        self.entered = threading.Event()
        self.readings = 0
        self.closed = 0
        self.threads: list[threading.Thread] = []

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.own

    def close(self) -> None:
        self.closed += 1

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        self.readings += 1
        self.threads.append(threading.current_thread())
        self.entered.set()
        yield FAMILIES[self.own], [((), self.readings)]
        if self.hangs:
            self.go_on.wait(20)
        if self.error is not None:
            raise self.error


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(root=str(tmp_path), hostname="n", cluster="c")


def scrape(scraper: Scraper, seconds: float = 5.0, **more: list[str]) -> dict[str, float]:
    return values(join_text(scraper.scrape(seconds, **more)).decode())


def test_a_scrape_that_runs_on_reads_nothing_that_is_closed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scraping, "PATIENCE", 60.0)
    slow, later = Scripted("hanging", hangs=True), Scripted("other")
    scraper = Scraper(node, {"ccagent": [slow, later]})
    thread = threading.Thread(target=scraper.scrape, args=(60.0,))
    thread.start()
    assert slow.entered.wait(20)
    scraper.close()
    slow.go_on.set()
    thread.join(20)
    assert (slow.closed, later.closed, later.readings) == (1, 1, 0)


@pytest.mark.parametrize(
    "error", [NotHereError("x"), UnparsableError("x"), ValueError("x"), RecursionError("x")]
)
def test_one_that_fails_costs_its_own_families(node: Node, error: Exception) -> None:
    bad = Scripted("bad", error)
    found = scrape(Scraper(node, {"ccagent": [Scripted("good"), bad, Scripted("other")]}))
    assert (found["test_good"], found["test_other"]) == (1, 1)
    assert "test_bad" not in found
    assert found['ccagent_scrape_collector_success{collector="bad"}'] == 0
    assert found['ccagent_scrape_collector_success{collector="other"}'] == 1


@pytest.mark.slow
def test_one_that_hangs_costs_its_own_families_and_no_later_scrape_waits(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scraping, "PATIENCE", 0.02)
    monkeypatch.setattr(scraping, "_SLOW_AFTER", 0.05)
    hanging = Scripted("hanging", hangs=True)
    scraper = Scraper(node, {"ccagent": [Scripted("good"), hanging, Scripted("other")]})
    first = scrape(scraper, 2.0)
    assert (first["test_good"], first["test_other"]) == (1, 1)
    assert first['ccagent_scrape_collector_success{collector="hanging"}'] == 0
    for reading in (2, 3):
        found = scrape(scraper, 30.0)
        assert (found["test_good"], found["test_other"]) == (reading, reading)
        assert "test_hanging" not in found
    assert hanging.readings == 1
    hanging.hangs = False
    hanging.go_on.set()
    deadline = time.monotonic() + 10
    while "test_hanging" not in scrape(scraper):
        assert time.monotonic() < deadline


def test_one_that_is_only_slow_is_waited_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "PATIENCE", 0.02)
    slow = Scripted("hanging", hangs=True)
    threading.Timer(0.1, slow.go_on.set).start()
    found = scrape(Scraper(node, {"ccagent": [slow, Scripted("other")]}), 10.0)
    assert (found["test_hanging"], found["test_other"]) == (1, 1)


def test_two_scrapes_at_once_both_have_a_slow_one(node: Node) -> None:
    slow = Scripted("hanging", hangs=True)
    scraper = Scraper(node, {"ccagent": [slow]})
    found: list[dict[str, float]] = []
    threads = [threading.Thread(target=lambda: found.append(scrape(scraper))) for _ in range(2)]
    threads[0].start()
    assert slow.entered.wait(5)
    threads[1].start()
    time.sleep(0.05)
    slow.go_on.set()
    for each in threads:
        each.join()
    assert all("test_hanging" in each for each in found)


def test_scrapes_keep_a_thread_until_the_end(node: Node) -> None:
    good = Scripted("good")
    scraper = Scraper(node, {"ccagent": [good]})
    scrape(scraper)
    scrape(scraper)
    first, second = good.threads
    assert first is second
    scraper.close()
    first.join(20)
    assert not first.is_alive()


def test_collectors_are_chosen_by_name(node: Node) -> None:
    scraper = Scraper(node, {"ccagent": [Scripted("good"), Scripted("other")]})
    assert "test_other" not in scrape(scraper, include=["good"])
    assert "test_other" in scrape(scraper, exclude=["good"])
    assert 'ccagent_scrape_collector_success{collector="other"}' not in scrape(
        scraper, include=["good"]
    )


def test_collectors_of_node_exporter_are_counted_as_its_own(node: Node) -> None:
    found = scrape(Scraper(node, {"node_exporter": [Scripted("good")]}))
    assert found['node_scrape_collector_success{collector="good"}'] == 1
    assert not any(name.startswith("ccagent_") for name in found)
