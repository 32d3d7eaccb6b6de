"""The exporter of a running daemon: configured addresses, sockets from systemd, cached scrapes."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError
from ccagent.exporter.access import PasswordFile, TlsContext
from ccagent.exporter.collector import make_collectors
from ccagent.exporter.gpu_metrics import keep_gpu_jobs
from ccagent.exporter.http_server import ExporterServer, RequestHandler
from ccagent.exporter.pages import ExporterPages
from ccagent.exporter.scraping import Scraper
from ccagent.exporter.settings import SYSTEMD
from ccagent.exporter.sources import NodeSources
from ccagent.log import logger, say
from ccagent.net.urls import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Sequence
    from typing import TypeVar

    from ccagent.exporter.exposition import Block
    from ccagent.exporter.settings import Address, ExporterSettings
    from ccagent.machine.node import Node

    T = TypeVar("T")
    V = TypeVar("V")


_FIRST = 3
_BACKLOG = 128
_FIRST_PAUSE = 0.05
_RETRY_AFTER = 5.0


class ExporterListening:
    """The server of an exporter with its listening sockets, kept across reloads."""

    def __init__(self, handler: RequestHandler) -> None:
        self._server = ExporterServer(handler)
        self.stopped_clients = self._server.stopped
        self._lock = threading.Lock()
        self._is_started = False
        self._settings: ExporterSettings | None = None
        self._open: dict[Address, socket.socket] = {}
        self._passed: list[socket.socket] = []
        self._is_retrying = False
        self._closing = threading.Event()

    def use(self, settings: ExporterSettings, handler: RequestHandler) -> None:
        """Listen at the configured addresses, and close all others afterwards.

        An address that can't be opened is retried, at last every 5 s.
        """
        with self._lock:
            self._settings = settings
            passed_before = self._passed
            try:
                self._passed = passed_sockets(settings)
            except ConfigurationError as error:
                logger.error("%s", error)
                self._passed = []
            wanted = settings.addresses()
            closed = [each for address, each in self._open.items() if address not in wanted]
            kept = {address: self._open[address] for address in wanted if address in self._open}
            # The same port at another address of this machine is free when the old one is closed.
            opened = _open_sockets(settings, kept, is_last_try=not closed)
            self._open = kept | opened
            self._start(handler, [*self._passed, *opened.values()], [*passed_before, *closed])
            if closed:
                self._open_missing()
            if len(self._open) < len(wanted) and not self._is_retrying:
                self._is_retrying = True
                threading.Thread(target=self._retry, name="exporter-listen", daemon=True).start()

    def retire(self) -> None:
        """Close the sockets, and end after the running answers. Do not wait for the end."""
        self._closing.set()
        with self._lock:
            self._server.change(None, closed=[*self._passed, *self._open.values()])

    def close(self) -> None:
        """Close the sockets and all connections."""
        self._closing.set()
        with self._lock:
            self._server.close()

    def _start(
        self,
        handler: RequestHandler,
        opened: list[socket.socket],
        closed: Sequence[socket.socket] = (),
    ) -> None:
        """Hand sockets to the server. Log it if the server can't be started."""
        if not self._is_started:
            try:
                self._server.start()
                self._is_started = True
            except RuntimeError as error:
                logger.error("exporter: %s; nothing is served", error)
                return
        self._server.change(handler, opened, closed)
        assert self._settings is not None  # noqa: S101 - set by `use`
        scheme = "http" if handler.tls is None else "https"
        for each in opened:
            say(f"exporter: listening at {scheme}://{show_address(each)}{self._settings.path}")

    def _open_missing(self) -> bool:
        """Open the addresses that are not open yet. Return whether all addresses are open."""
        assert self._settings is not None  # noqa: S101 - set by `use`
        opened = _open_sockets(self._settings, self._open)
        if opened:
            self._open |= opened
            self._start(self._server.handler, [*opened.values()])
        return len(self._open) == len(self._settings.addresses())

    def _retry(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closing.wait(pause):
            pause = min(2 * pause, _RETRY_AFTER)
            with self._lock:
                try:
                    if self._closing.is_set() or self._open_missing():
                        self._is_retrying = False
                        return
                except Exception:  # noqa: BLE001 - the next attempt may work
                    logger.exception("exporter: listening failed")


def _open_sockets(
    settings: ExporterSettings, open_before: Container[Address], *, is_last_try: bool = True
) -> dict[Address, socket.socket]:
    """Return listening sockets for the addresses that are not in `open_before`.

    An address that can't be opened is omitted, and logged at the last try.
    """
    found: dict[Address, socket.socket] = {}
    for address in settings.addresses():
        if address in open_before:
            continue
        try:
            found[address] = listen(address)
        except OSError as error:
            if is_last_try:
                logger.error(
                    "exporter: %s:%d: %s; retrying",
                    address.host, address.port, error.strerror or error,
                )  # fmt: skip
    return found


def listen(address: Address) -> socket.socket:
    """Return a socket that listens on an address. Raise OSError if that fails."""
    host = address.host
    if host == "localhost":
        host = "127.0.0.1"
    family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
    try:
        return _listen(family, host or "::", address.port)
    except OSError:
        if address.host:
            raise
        return _listen(socket.AF_INET, "0.0.0.0", address.port)  # noqa: S104 - asked for


def _listen(family: int, host: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        name, _, scope = host.partition("%")
        if scope:
            made.bind((name, port, 0, socket.if_nametoindex(scope)))
        else:
            made.bind((name, port))
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def show_address(listening: socket.socket) -> str:
    """Return the address of a socket as in a URL: `HOST:PORT`, `[IPV6]:PORT`, or a path."""
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return str(name)
    host, port = str(name[0]), int(name[1])
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def passed_sockets(settings: ExporterSettings) -> list[socket.socket]:
    """Return the sockets passed by systemd (sd_listen_fds(3)); [] if `listen` lacks `systemd`.

    Raise ConfigurationError if systemd passed no socket, no stream socket, or a socket beyond
    loopback without protection.
    """
    if SYSTEMD not in settings.listen:
        return []
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        raise ConfigurationError(
            "exporter.listen: systemd has passed no socket: start the .socket unit"
        )
    found: list[socket.socket] = []
    with contextlib.ExitStack() as opened:
        for descriptor in range(_FIRST, _FIRST + int(count)):
            try:
                # systemd passes descriptors without close-on-exec: no program gets them from here.
                os.set_inheritable(descriptor, False)
                # A copy: after a reload the descriptors are used again.
                passed = opened.enter_context(socket.socket(fileno=os.dup(descriptor)))
            except OSError as error:
                raise ConfigurationError(
                    f"exporter.listen: descriptor {descriptor} of systemd: {error.strerror}"
                ) from error
            _check_passed(passed, settings)
            found.append(passed)
        opened.pop_all()
    return found


def _check_passed(passed: socket.socket, settings: ExporterSettings) -> None:
    """Raise ConfigurationError for no stream socket, or one beyond loopback without protection."""
    if passed.type != socket.SOCK_STREAM:
        raise ConfigurationError(
            "exporter.listen: systemd's socket is not a stream: use ListenStream= in the unit"
        )
    host = str(passed.getsockname()[0]) if passed.family != socket.AF_UNIX else "localhost"
    if not (is_loopback(host) or settings.is_protected or settings.insecure):
        raise ConfigurationError(
            f"exporter.listen: systemd's socket at {host} is open to the network: set"
            " certificate-file and users-file, or insecure = true"
        )


_NEW_OBJECTS = 10_000
"""New objects before a collection of garbage. With Python's 700 it takes a sixth of a scrape."""
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
        self._tls = (
            _locate_problems("exporter.", TlsContext, settings)
            if settings.certificate_file
            else None
        )
        self._passwords = (
            _locate_problems("exporter.users-file: ", PasswordFile, settings.users_file)
            if settings.users_file
            else None
        )
        self._sources = NodeSources(settings)
        self._collectors = make_collectors(settings, self._sources)
        self._closing = threading.Event()
        self._listening: ExporterListening | None = None
        self._answers: AnswerCache | None = None

    def start(self, node: Node, before: ExporterService | None = None) -> None:
        """Start to listen, or take over from the service before a reload."""
        # A scrape makes thousands of tuples, which are gone at its end.
        gc.set_threshold(max(gc.get_threshold()[0], _NEW_OBJECTS), *gc.get_threshold()[1:])
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


def _locate_problems(place: str, make: Callable[[V], T], value: V) -> T:
    """Return what `make` returns. Add the place before the problems of a ConfigurationError."""
    try:
        return make(value)
    except ConfigurationError as error:
        raise ConfigurationError(*(f"{place}{each}" for each in error.problems)) from error
