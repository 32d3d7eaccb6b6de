"""The sockets of the exporter: its own addresses, and those that systemd passes."""

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
    """Return the listening sockets of the addresses that can be had, without those open before.

    One that another process has is logged.
    """
    found: dict[Address, socket.socket] = {}
    for address in settings.addresses():
        if address in open_before:
            continue
        try:
            found[address] = listen(address)
        except OSError as error:
            logger.error(
                "exporter: %s:%d: %s; trying again",
                address.host, address.port, error.strerror or error,
            )  # fmt: skip
    return found


def listen(address: Address) -> socket.socket:
    """Return a socket that listens at an address. Raises OSError."""
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
    """Return the address of a socket as it stands in a URL."""
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return str(name)
    host, port = str(name[0]), int(name[1])
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def passed_sockets(settings: ExporterSettings) -> list[socket.socket]:
    """Return the sockets that systemd passes (sd_listen_fds(3)), if `listen` has them.

    Raises ConfigurationError if there is none, or one beyond loopback without protection.
    """
    if SYSTEMD not in settings.listen:
        return []
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        raise ConfigurationError(
            "exporter.listen: systemd has passed no socket: is the .socket unit started?"
        )
    found: list[socket.socket] = []
    for descriptor in range(_FIRST, _FIRST + int(count)):
        try:
            # A copy: a configuration that is read again takes them again.
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
                "exporter.listen: systemd's socket is not of ListenStream: no HTTP over it"
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
