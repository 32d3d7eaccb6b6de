"""The exporter of a running daemon: sockets, scrapes, retries."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError
from ccagent.log import logger, say
from ccagent.transports.prometheus.gpu_job_files import keep_gpu_jobs
from ccagent.transports.prometheus.http_server import ExporterServer
from ccagent.transports.prometheus.listening import (
    open_sockets,
    passed_sockets,
    show_address,
)
from ccagent.transports.prometheus.pages import ExporterPages
from ccagent.transports.prometheus.passwords import PasswordFile
from ccagent.transports.prometheus.registry import make_collectors
from ccagent.transports.prometheus.scraping import Scraper
from ccagent.transports.prometheus.sources import NodeSources

if TYPE_CHECKING:
    import socket
    from collections.abc import Collection

    from ccagent.machine.node import Node
    from ccagent.transports.prometheus.exposition import Block
    from ccagent.transports.prometheus.settings import Address, ExporterSettings
    from ccagent.transports.prometheus.tls import TlsContext

_RETRY_AFTER = 5.0
_MOST_KEPT = 16
_TURN = 2.0
"""Seconds for which a request waits for the scrape of another request."""


class ExporterService:
    """The exporter of a node.

    During a reload the new service is created while the old service runs, and started after the old
    service is closed.
    """

    def __init__(self, settings: ExporterSettings) -> None:
        """Read certificate and users. Raise ConfigurationError if a file is invalid."""
        self.settings = settings
        self._tls = _make_tls(settings)
        self._passwords = _read_users(settings)
        self._sources = NodeSources(settings)
        self._collectors = make_collectors(settings, self._sources)
        self._closing = threading.Event()
        self._servers: list[ExporterServer] = []
        self._open: set[Address] = set()
        self._answers: AnswerCache | None = None
        self._pages: ExporterPages | None = None
        self._lock = threading.Lock()
        self.ports: list[int] = []
        """The ports of the open sockets."""

    def start(self, node: Node) -> None:
        """Start to listen. An address that can't be opened is retried every 5 s."""
        scraper = Scraper(node, self._collectors)
        self._answers = AnswerCache(scraper, self.settings.min_interval.seconds)
        self._pages = ExporterPages(
            self.settings, self._answers.scrape, scraper.names, self._passwords
        )
        try:
            self._serve(passed_sockets(self.settings))
        except ConfigurationError as error:
            logger.error("%s", error)
        if self.settings.gpu_job_directory:
            keep_gpu_jobs(self.settings.gpu_job_directory, node, self._sources, self._closing)
        if not self._listen():
            threading.Thread(target=self._try_again, name="exporter-listen", daemon=True).start()

    def close(self) -> None:
        """Close the sockets, connections and collectors. A running scrape is abandoned."""
        self._closing.set()
        with self._lock:
            for server in self._servers:
                server.close()
            self._servers.clear()
        if self._answers is not None:
            self._answers.close()
        self._sources.close()

    def _listen(self) -> bool:
        """Open the addresses that are not open yet. Return whether all addresses are open."""
        found = open_sockets(self.settings, self._open)
        self._serve([*found.values()])
        self._open.update(found)
        return len(self._open) == len(set(self.settings.addresses()))

    def _try_again(self) -> None:
        while not self._closing.wait(_RETRY_AFTER):
            try:
                if self._listen():
                    return
            except Exception:  # noqa: BLE001 - the next attempt may work
                logger.exception("exporter: listening failed")

    def _serve(self, sockets: list[socket.socket]) -> None:
        if not sockets or self._pages is None:
            return
        with self._lock:
            if self._closing.is_set():
                for each in sockets:
                    each.close()
                return
            server = ExporterServer(
                sockets,
                self._pages.answer,
                tls=self._tls,
                most=self.settings.clients,
                seconds=self.settings.client_timeout.seconds,
            )
            self.ports += [each.getsockname()[1] for each in sockets]
            try:
                server.start()
            except RuntimeError as error:
                logger.error("exporter: %s; nothing is served", error)
                return
            self._servers.append(server)
        scheme = "https" if self._tls is not None else "http"
        for each in sockets:
            say(f"exporter: listening at {scheme}://{show_address(each)}{self.settings.path}")


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
    from ccagent.transports.prometheus.tls import TlsContext

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
