"""The listening sockets of the exporter: configured addresses, and sockets from systemd."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError
from ccagent.exporter.http_server import ExporterServer
from ccagent.exporter.settings import SYSTEMD, is_loopback
from ccagent.log import logger, say

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from ccagent.exporter.http_server import RequestHandler
    from ccagent.exporter.settings import Address, ExporterSettings

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
    for descriptor in range(_FIRST, _FIRST + int(count)):
        try:
            # systemd passes descriptors without close-on-exec: no program gets them from here.
            os.set_inheritable(descriptor, False)
            # A copy: after a reload the descriptors are used again.
            made = socket.socket(fileno=os.dup(descriptor))
        except OSError as error:
            raise ConfigurationError(
                f"exporter.listen: descriptor {descriptor} of systemd: {error.strerror}"
            ) from error
        found.append(made)
        if made.type != socket.SOCK_STREAM:
            for each in found:
                each.close()
            raise ConfigurationError(
                "exporter.listen: systemd's socket is not a stream: use ListenStream= in the unit"
            )
        if made.family == socket.AF_UNIX:
            continue
        host = str(made.getsockname()[0])
        if not (is_loopback(host) or settings.is_protected or settings.insecure):
            for each in found:
                each.close()
            raise ConfigurationError(
                f"exporter.listen: systemd's socket at {host} is open to the network: set"
                " certificate-file and users-file, or insecure = true"
            )
    return found
