"""The keys of a sink `http://` or `https://`, and what they must not be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.errors import ConfigurationError
from ccagent.transports.network import NetworkSettings, check_network
from ccagent.transports.urls import Server, split_url

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_PORTS = {"http": 80, "https": 443}
_PLACEHOLDERS = {"{kind}", "{cluster}", "{node}"}


class HttpSettings(NetworkSettings, frozen=True, kw_only=True):
    """The keys of a sink `http://` or `https://`."""

    user: Annotated[
        str, Meta(description="user of Basic authentication; empty: the cluster's name")
    ] = ""
    token_file: Annotated[str, Meta(description="file with a Bearer token")] = ""
    proxy: Annotated[
        str, Meta(description="http://HOST:PORT to go through; the environment has no say")
    ] = ""
    max_payload: Annotated[
        int, Meta(ge=1, description="bytes of the largest body, before compression")
    ] = 1_000_000
    gzip: Annotated[
        bool, Meta(description="compress requests (Jobanalyzer and ClusterCockpit refuse that)")
    ] = False

    takes_errors_alone: ClassVar[bool] = False

    @property
    def largest_body(self) -> int:
        """Bytes of the largest body, of all that set a limit."""
        known = self.preset
        limit = known.largest_body if known is not None else None
        return self.max_payload if limit is None else min(limit, self.max_payload)


def checked(settings: HttpSettings) -> SplitResult:
    """Split the URL and refuse what would leak or can't work. Raises ConfigurationError."""
    target = split_url(settings.url)
    found = set(re.findall(r"\{.*?\}", f"{target.path}?{target.query}"))
    if found - _PLACEHOLDERS:
        raise ConfigurationError(
            "url: its path and query may hold {kind}, {cluster} and {node}, nothing else in braces"
        )
    if settings.user and not settings.password_file:
        raise ConfigurationError("user: needs a password-file")
    if ":" in settings.user:
        raise ConfigurationError("user: a colon can't be part of it")
    if settings.gzip and settings.receiver:
        raise ConfigurationError(f"gzip: {settings.receiver} refuses compressed requests")
    if settings.token_file and settings.password_file:
        raise ConfigurationError("token-file and password-file exclude each other")
    proxy = proxy_of(settings)
    check_network(
        settings,
        [target.hostname or "", *([proxy.host] if proxy else [])],
        is_encrypted=target.scheme == "https",
        secret=settings.token_file or settings.password_file,
    )
    return target


def proxy_of(settings: HttpSettings) -> Server | None:
    """Split the proxy's URL. Raises ConfigurationError."""
    if not settings.proxy:
        return None
    try:
        target = split_url(settings.proxy)
    except ConfigurationError:
        target = None
    if target is None or target.scheme != "http" or target.path.strip("/") or target.query:
        raise ConfigurationError("proxy: expected http://HOST:PORT, without user or password")
    return server_of(target)


def server_of(target: SplitResult) -> Server:
    """Give host and port of a split URL."""
    return Server(target.hostname or "", target.port or _PORTS[target.scheme])
