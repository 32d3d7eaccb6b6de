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
        list[str], Meta(description="users who may see all jobs, in addition to roles of tokens")
    ] = []
    proxies: Annotated[
        list[str], Meta(description="addresses of reverse proxies that log users in")
    ] = []
    proxy_header: Annotated[str, Meta(description="header in which a proxy names the user")] = (
        "X-Remote-User"
    )
    proxy_secret_file: Annotated[
        str, Meta(description="file with the secret that a proxy sends as X-Ccagent-Secret")
    ] = ""
    behind_tls: Annotated[
        bool, Meta(description="a proxy ends TLS: browsers send the session's cookie over it alone")
    ] = False
    preset: Annotated[
        Literal["clustercockpit", "spec", "base"],
        Meta(description="unit preset of the agents that send to the store"),
    ] = "clustercockpit"
    thresholds: JobThresholds = JobThresholds()

    def problems(self) -> list[str]:
        """Return the problems of the settings, each with its key."""
        found: list[str] = []
        for proxy in self.proxies:
            try:
                ipaddress.ip_address(proxy)
            except ValueError:
                found.append(f"web.proxies: {proxy!r} is not an address such as 10.0.0.1")
        if self.proxies and not self.proxy_secret_file:
            found.append("web.proxy-secret-file: required with web.proxies")
        if not _HEADER.fullmatch(self.proxy_header):
            found.append(f"web.proxy-header: {self.proxy_header!r} is not a header name")
        if "" in self.staff:
            found.append("web.staff: has an empty name")
        return found
