"""URLs of sinks, and networks. No error contains a URL: it may contain a password or token."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from ccagent.errors import ConfigurationError

_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[\w.:-]+", re.ASCII)


class Server(NamedTuple):
    """A host, by name or address (IPv6 without brackets), and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL. Raise ConfigurationError if it is malformed or has a login."""
    _refuse_login(url)
    try:
        target = urlsplit(url)
        port = target.port
    except ValueError:
        # The cause contains the URL.
        raise ConfigurationError("url: its host or port is malformed") from None
    if not url.isprintable() or not url.isascii() or " " in url:
        raise ConfigurationError("url: printable ASCII without spaces is expected")
    if not target.hostname or port == 0 or not _HOST.fullmatch(target.hostname):
        raise ConfigurationError(f"url: expected {target.scheme}://HOST[:PORT]")
    return target


def split_servers(url: str, default_port: int) -> list[Server]:
    """Return the servers of `SCHEME://HOST[:PORT],HOST[:PORT]...`.

    Each server may have the scheme. Raise ConfigurationError for another form.
    """
    _refuse_login(url)
    scheme = url.partition("://")[0]
    servers: list[Server] = []
    for part in url.removesuffix("/").split(","):
        rest = part.removeprefix(f"{scheme}://")
        target = split_url(f"{scheme}://{rest}")
        if target.netloc != rest:
            raise ConfigurationError(
                f"url: expected {scheme}://HOST[:PORT][,HOST[:PORT]...] and nothing after it"
            )
        servers.append(Server(target.hostname or "", target.port or default_port))
    return servers


def server_of_url(target: SplitResult) -> Server:
    """Return host and port of a URL, with the scheme's default port."""
    return Server(target.hostname or "", target.port or _PORTS[target.scheme])


def describe_address(host: str, port: int, *, is_tls: bool) -> str:
    """Return host, port and URL of a server that listens; an empty host: every address."""
    shown = f"[{host}]" if ":" in host else host or "localhost"
    scheme = "https" if is_tls else "http"
    return f"{host or 'every address'}, port {port}: {scheme}://{shown}:{port}/"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refuse_login(url: str) -> None:
    """Raise ConfigurationError if a URL contains a login."""
    if "@" in url.partition("?")[0]:
        raise ConfigurationError(
            "url: with a user, password or token in it: set user and password-file, or token-file"
        )


def network(address: str) -> str:
    """Return the part of an address that belongs to one client: IPv4, or the /64 of IPv6.

    An IPv4 address in the form of IPv6 is the same client. Other texts are unchanged.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), 64), strict=False))
