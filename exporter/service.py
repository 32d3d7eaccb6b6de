"""The exporter of a running daemon: sockets, scrapes, retries."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError
from ccagent.exporter.gpu_job_files import keep_gpu_jobs
from ccagent.exporter.http_server import RequestHandler
from ccagent.exporter.listening import ExporterListening
from ccagent.exporter.pages import ExporterPages
from ccagent.exporter.passwords import PasswordFile
from ccagent.exporter.registry import make_collectors
from ccagent.exporter.scraping import Scraper
from ccagent.exporter.sources import NodeSources

if TYPE_CHECKING:
    from collections.abc import Collection

    from ccagent.exporter.exposition import Block
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.tls import TlsContext
    from ccagent.machine.node import Node

_MOST_KEPT = 16
_TURN = 2.0
"""Seconds for which a request waits for the scrape of another request."""


class ExporterService:
    """The exporter of a node.

    During a reload the new service is created while the old service runs. At its start it takes
    over the sockets and connections of the old service, which ends after its running answers.
    """

    def __init__(self, settings: ExporterSettings) -> None:
        """Read certificate and users. Raise ConfigurationError if a file is invalid."""
        self.settings = settings
        self._tls = _make_tls(settings)
        self._passwords = _read_users(settings)
        self._sources = NodeSources(settings)
        self._collectors = make_collectors(settings, self._sources)
        self._closing = threading.Event()
        self._listening: ExporterListening | None = None
        self._answers: AnswerCache | None = None

    def start(self, node: Node, before: ExporterService | None = None) -> None:
        """Start to listen, or take over from the service before a reload."""
        scraper = Scraper(node, self._collectors)
        self._answers = AnswerCache(scraper, self.settings.min_interval.seconds)
        self._take_over(before)
        pages = ExporterPages(self.settings, self._answers.scrape, scraper.names, self._passwords)
        handler = RequestHandler(
            pages.answer,
            self._end,
            tls=self._tls,
            most=self.settings.clients,
            seconds=self.settings.client_timeout.seconds,
        )
        if self._listening is None:
            self._listening = ExporterListening(handler)
        self._sources.stopped_clients = self._listening.stopped_clients
        self._listening.use(self.settings, handler)
        if self.settings.gpu_job_directory:
            keep_gpu_jobs(self.settings.gpu_job_directory, node, self._sources, self._closing)

    def retire(self) -> None:
        """Close the sockets, and end after the running answers. Do not wait for the end."""
        self._closing.set()
        if self._listening is not None:
            self._listening.retire()

    def close(self) -> None:
        """Close the sockets, connections and collectors. A running scrape is abandoned."""
        self._closing.set()
        if self._listening is None:
            self._end()
        else:
            self._listening.close()

    def _take_over(self, before: ExporterService | None) -> None:
        if before is None:
            return
        before._closing.set()  # noqa: SLF001 - of this class
        self._listening = before._listening  # noqa: SLF001
        if _tls_files(self.settings) == _tls_files(before.settings):
            self._tls = before._tls  # noqa: SLF001 - connections with an equal TLS may stay
        if self.settings.users_file == before.settings.users_file:
            self._passwords = before._passwords  # noqa: SLF001 - it knows who has guessed

    def _end(self) -> None:
        self._closing.set()
        if self._answers is not None:
            self._answers.close()
        self._sources.close()


def _tls_files(settings: ExporterSettings) -> tuple[object, ...]:
    return (
        settings.certificate_file,
        settings.key_file,
        settings.client_ca_file,
        settings.client_names,
    )


class AnswerCache:
    """Scrapes, and a cache of their results for one interval.

    Concurrent requests share one reading, also if it takes longer than the interval.
    """

    def __init__(self, scraper: Scraper, interval: float) -> None:
        self._scraper = scraper
        self._interval = interval
        self._lock = threading.Lock()
        self._last: dict[tuple[frozenset[str], frozenset[str]], tuple[float, list[Block]]] = {}

    def scrape(
        self, seconds: float, include: Collection[str], exclude: Collection[str]
    ) -> list[Block]:
        """Return the families of a new or cached scrape. seconds: time limit."""
        key = (frozenset(include), frozenset(exclude))
        begin = time.monotonic()
        is_first = self._lock.acquire(timeout=min(seconds, _TURN))
        try:
            # The age counts from the request: a scrape that started later is never too old.
            oldest = begin - self._interval
            last = self._last.get(key)
            if last is not None and last[0] > oldest:
                return last[1]
            now = time.monotonic()
            limit = max(0.05, seconds - (now - begin))
            blocks = self._scraper.scrape(limit, include, exclude)
            if time.monotonic() >= now + limit:
                return blocks  # incomplete: not cached, the client's time limit may have been short
            kept = {each: known for each, known in self._last.items() if known[0] > oldest}
            self._last = (kept if len(kept) < _MOST_KEPT else {}) | {key: (now, blocks)}
            return blocks
        finally:
            if is_first:
                self._lock.release()

    def close(self) -> None:
        """Close the collectors."""
        self._last.clear()
        self._scraper.close()


def _make_tls(settings: ExporterSettings) -> TlsContext | None:
    """Return the TLS context; None without a certificate.

    Raise ConfigurationError if a file is invalid.
    """
    if not settings.certificate_file:
        return None
    from ccagent.exporter.tls import TlsContext

    try:
        return TlsContext(settings)
    except ConfigurationError as error:
        raise ConfigurationError(*(f"exporter.{each}" for each in error.problems)) from error


def _read_users(settings: ExporterSettings) -> PasswordFile | None:
    """Return the users file; None if none is configured.

    Raise ConfigurationError if the file is invalid.
    """
    if not settings.users_file:
        return None
    try:
        return PasswordFile(settings.users_file)
    except ConfigurationError as error:
        raise ConfigurationError(
            *(f"exporter.users-file: {each}" for each in error.problems)
        ) from error
