"""The keys of `[web]` in the store's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ccagent.config.settings import Settings
from ccagent.views.job.thresholds import JobThresholds


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
    preset: Annotated[
        Literal["clustercockpit", "spec", "base"],
        Meta(description="unit preset with which the agents send"),
    ] = "clustercockpit"
    thresholds: JobThresholds = JobThresholds()
