"""The sockets that systemd passes, and the cache of answers: requests at once cost one reading."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Collection
from typing import cast

import pytest

from ccagent.errors import ConfigurationError
from ccagent.exporter import service
from ccagent.exporter.exposition import Block
from ccagent.exporter.http_connection import ExporterConnection
from ccagent.exporter.scraping import Scraper
from ccagent.exporter.service import AnswerCache, passed_sockets
from ccagent.exporter.settings import ExporterSettings
from tests.support.running import until


def test_a_socket_of_datagrams_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as passed:
        passed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(service, "_FIRST", passed.fileno())
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", "1")
        with pytest.raises(ConfigurationError, match="ListenStream"):
            passed_sockets(ExporterSettings(listen=("systemd",)))


def test_a_response_waits_for_no_acknowledgement() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        connected, _ = listening.accept()
        with client, connected:
            connection = ExporterConnection(connected, 0.0)
            assert connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class Steps:
    """A clock that a test sets, in place of the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        return self.now


class SlowScraper:
    """Takes as long as the test wants."""

    def __init__(self) -> None:
        self.readings = 0
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def scrape(
        self, seconds: float, include: Collection[str], exclude: Collection[str]
    ) -> list[Block]:
        del seconds, include, exclude
        self.readings += 1
        self.entered.set()
        self.go_on.wait(20)
        return []


def test_who_asks_during_a_slow_scrape_gets_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, scraper = Steps(), SlowScraper()
    monkeypatch.setattr(service, "time", clock)
    monkeypatch.setattr(service, "_TURN", 60.0)
    cache = AnswerCache(cast("Scraper", scraper), 0.2)
    threads = [threading.Thread(target=cache.scrape, args=(9.5, (), ())) for _ in range(2)]
    threads[0].start()
    assert scraper.entered.wait(20)
    asked = clock.asked
    threads[1].start()
    until(lambda: clock.asked > asked)
    clock.now += 5.0
    scraper.go_on.set()
    for each in threads:
        each.join(20)
    assert scraper.readings == 1
    cache.scrape(9.5, (), ())
    assert scraper.readings == 2


def test_values_that_an_impatient_client_got_are_not_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, scraper = Steps(), SlowScraper()
    monkeypatch.setattr(service, "time", clock)
    scraper.go_on.set()
    monkeypatch.setattr(scraper.entered, "set", lambda: setattr(clock, "now", clock.now + 0.1))
    cache = AnswerCache(cast("Scraper", scraper), 30.0)
    cache.scrape(0.1, (), ())
    cache.scrape(9.5, (), ())
    assert scraper.readings == 2
    cache.scrape(0.1, (), ())
    assert scraper.readings == 2
