"""The keys of `[web]` in the store's configuration."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from msgspec import Meta

from ccagent.config.settings import Settings
from ccagent.views.job.thresholds import JobThresholds

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class WebSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[web]`."""

    listen: Annotated[str, Meta(description="ADDRESS:PORT of the pages; empty: none")] = ""
    staff: Annotated[
        list[str], Meta(description="users who may see the jobs of all, beside roles of tokens")
    ] = []
    proxies: Annotated[
        list[str], Meta(description="addresses of reverse proxies that log users in")
    ] = []
    proxy_header: Annotated[str, Meta(description="header in which a proxy names the user")] = (
        "X-Remote-User"
    )
    proxy_secret_file: Annotated[
        str, Meta(description="file with what a proxy sends as X-Ccagent-Secret")
    ] = ""
    behind_tls: Annotated[
        bool, Meta(description="a proxy ends TLS: browsers send the session's cookie over it alone")
    ] = False
    preset: Annotated[
        Literal["clustercockpit", "spec", "base"],
        Meta(description="unit preset with which the agents send"),
    ] = "clustercockpit"
    thresholds: JobThresholds = JobThresholds()

    def problems(self) -> list[str]:
        """Return what can't be used, each with its key."""
        found: list[str] = []
        for proxy in self.proxies:
            try:
                ipaddress.ip_address(proxy)
            except ValueError:
                found.append(f"web.proxies: {proxy!r} is no address such as 10.0.0.1")
        if self.proxies and not self.proxy_secret_file:
            found.append("web.proxy-secret-file: needed with web.proxies")
        if not _HEADER.fullmatch(self.proxy_header):
            found.append(f"web.proxy-header: {self.proxy_header!r} is no name of a header")
        if "" in self.staff:
            found.append("web.staff: a name is empty")
        return found
