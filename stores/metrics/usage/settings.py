"""The keys of `[usage]` in the store's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ccagent.config.duration import Duration
from ccagent.config.settings import Settings
from ccagent.errors import ConfigurationError

SourceName = Literal["", "rte", "electricity-maps", "watttime", "owid"]
_SHORTEST = 60.0


class UsageSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[usage]`: factors of emissions, PUE and price for the energy of jobs."""

    zone: Annotated[
        str, Meta(description="zone of the factors, as the file and the source name it: FR, DE")
    ] = ""
    factor_file: Annotated[
        str,
        Meta(description="CSV file with zone,time,g_per_kwh; without a time: the zone's constant"),
    ] = ""
    source: Annotated[
        SourceName, Meta(description="public source of factors that the store asks; empty: none")
    ] = ""
    source_url: Annotated[
        str, Meta(description="URL of the source, if it is not the public one")
    ] = ""
    token_file: Annotated[
        str, Meta(description="file with the source's token; of watttime USER:PASSWORD")
    ] = ""
    every: Annotated[Duration, Meta(description="time between two questions to the source")] = (
        Duration("30m")
    )
    time_limit: Annotated[Duration, Meta(description="time limit of an answer of the source")] = (
        Duration("30s")
    )
    pue: Annotated[
        float, Meta(ge=1, le=10, description="energy of the building per energy of the nodes")
    ] = 1.0
    price: Annotated[float, Meta(ge=0, description="price of a kWh; 0: no cost is shown")] = 0.0
    currency: Annotated[str, Meta(max_length=8, description="currency of the price")] = "EUR"
    common_error: Annotated[
        float,
        Meta(
            ge=0, le=1, description="share by which the sensors of all nodes may err in the same"
            " direction; more nodes do not reduce it"
        ),
    ] = 0.05  # fmt: skip

    def problems(self) -> list[str]:
        """Return the problems of the settings, each with its key."""
        found: list[str] = []
        if (self.factor_file or self.source not in {"", "rte"}) and not self.zone:
            found.append("usage.zone: required with factor-file or source")
        if self.source in {"electricity-maps", "watttime"} and not self.token_file:
            found.append(f"usage.token-file: required by the source {self.source}")
        found += self._problems_of_url()
        if self.every.seconds < _SHORTEST:
            found.append("usage.every: expected at least 60s: sources limit their clients")
        if self.time_limit.seconds <= 0:
            found.append("usage.time-limit: expected more than 0s")
        if not self.currency.isprintable():
            found.append("usage.currency: expected printable characters")
        return found

    def _problems_of_url(self) -> list[str]:
        from ccagent.net.urls import is_loopback, split_url

        if not self.source_url:
            return []
        if not self.source:
            return ["usage.source: required with source-url"]
        try:
            target = split_url(self.source_url)
        except ConfigurationError as error:
            return [f"usage.source-url: {error}"]
        if target.scheme not in {"http", "https"}:
            return ["usage.source-url: expected https://HOST/PATH"]
        if self.token_file and target.scheme == "http" and not is_loopback(target.hostname or ""):
            return ["usage.source-url: a token needs https, except on this machine"]
        return []
