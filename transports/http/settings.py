"""The keys of a sink `http://` or `https://`, and their check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta, structs

from ccagent.errors import ConfigurationError
from ccagent.net.tls import check_network
from ccagent.net.urls import Server, server_of_url, split_url
from ccagent.transports.base import NetworkSinkSettings
from ccagent.transports.templates import check_template

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import SplitResult


class HttpSettings(NetworkSinkSettings, frozen=True, kw_only=True):
    """The keys of a sink `http://` or `https://`."""

    user: Annotated[
        str, Meta(description="user of Basic authentication; empty: the cluster's name")
    ] = ""
    token_file: Annotated[str, Meta(description="file with a Bearer token")] = ""
    proxy: Annotated[
        str, Meta(description="proxy, http://HOST:PORT; the environment is not read")
    ] = ""
    max_payload: Annotated[
        int, Meta(ge=1, description="maximum bytes of a body, before compression")
    ] = 1_000_000
    gzip: Annotated[
        bool, Meta(description="compress requests (Jobanalyzer and ClusterCockpit refuse that)")
    ] = False

    takes_errors_alone: ClassVar[bool] = False

    @property
    def largest_body(self) -> int:
        """Maximum bytes of a body: the minimum of `max-payload` and the receiver's limit."""
        known = self.preset
        limit = known.largest_body if known is not None else None
        return self.max_payload if limit is None else min(limit, self.max_payload)


def check_settings(settings: HttpSettings) -> SplitResult:
    """Check the keys and return the URL in parts. Raise ConfigurationError."""
    target = split_url(settings.url)
    check_template("url", f"{target.path}?{target.query}", ("kind", "cluster", "node"))
    if settings.user and not settings.password_file:
        raise ConfigurationError("user: needs a password-file")
    if ":" in settings.user:
        raise ConfigurationError("user: a colon can't be part of it")
    if settings.gzip and settings.receiver:
        raise ConfigurationError(f"gzip: {settings.receiver} refuses compressed requests")
    if settings.token_file and settings.password_file:
        raise ConfigurationError("token-file and password-file exclude each other")
    proxy = split_proxy(settings)
    check_network(
        settings,
        [target.hostname or "", *([proxy.host] if proxy else [])],
        is_encrypted=target.scheme == "https",
        secret=settings.token_file or settings.password_file,
    )
    return target


def with_scheme(settings: HttpSettings, schemes: Mapping[str, str]) -> HttpSettings:
    """Return the settings with the scheme of HTTP in place of a scheme of ccagent's own."""
    scheme, _, rest = settings.url.partition(":")
    return structs.replace(settings, url=f"{schemes.get(scheme.lower(), scheme)}:{rest}")


def split_proxy(settings: HttpSettings) -> Server | None:
    """Return host and port of the proxy; None without proxy. Raise ConfigurationError."""
    if not settings.proxy:
        return None
    try:
        target = split_url(settings.proxy)
    except ConfigurationError:
        target = None
    if target is None or target.scheme != "http" or target.path.strip("/") or target.query:
        raise ConfigurationError("proxy: expected http://HOST:PORT, without user or password")
    return server_of_url(target)
