"""The listening sockets of the exporter: configured addresses, and sockets from systemd."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError
from ccagent.log import logger
from ccagent.transports.prometheus.settings import SYSTEMD, is_loopback

if TYPE_CHECKING:
    from ccagent.transports.prometheus.settings import Address, ExporterSettings

_FIRST = 3
_BACKLOG = 128


def open_sockets(
    settings: ExporterSettings, open_before: set[Address]
) -> dict[Address, socket.socket]:
    """Return listening sockets for the addresses that are not in `open_before`.

    An address that can't be opened is logged and omitted.
    """
    found: dict[Address, socket.socket] = {}
    for address in settings.addresses():
        if address in open_before:
            continue
        try:
            found[address] = listen(address)
        except OSError as error:
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
