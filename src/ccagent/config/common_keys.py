"""The keys that all agents have, those that all sinks have, and those of every client's TLS."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from ccagent.config.duration import Cadence, Duration
from ccagent.config.settings import Settings
from ccagent.records.encoding import Profile
from ccagent.records.message import Format, TimeUnit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.records.receivers import Receiver


_PRECISION = re.compile(r"[?&]precision=(s|ns)(?=&|#|$)")
"""The URL parameter for the unit of times in InfluxDB and compatible databases."""


class AgentSettings(Settings, frozen=True, kw_only=True):
    """The keys of every table `[agents.NAME]`."""

    every: Annotated[
        Cadence | None,
        Meta(
            description="how often, aligned to the UTC clock: seconds that divide a minute, "
            "minutes that divide an hour, hours that divide a day, or days"
        ),
    ] = None
    on_startup: Annotated[bool, Meta(description="also sample when the daemon starts")] = False
    sinks: Annotated[
        list[str], Meta(description="names of [sinks.NAME]; empty: all with a matching format")
    ] = []
    time_limit: Annotated[
        Duration, Meta(description="time after which a running sample counts as hung")
    ] = Duration("60s")
    extras: Annotated[
        list[str], Meta(description="optional fields to send; some consumers refuse them")
    ] = []
    token_file: Annotated[
        str, Meta(description="file with the API token for meta.token (some consumers refuse it)")
    ] = ""

    def beside(self, agents: Mapping[str, AgentSettings]) -> AgentSettings:  # noqa: ARG002
        """Return the settings adapted to the other agents of the configuration, by name."""
        return self


class SinkSettings(Settings, frozen=True, kw_only=True):
    """Keys of every table `[sinks.NAME]`."""

    url: Annotated[str, Meta(description="destination; the scheme names the transport")]
    format: Annotated[
        Format, Meta(description="'sonar': JSON envelopes; 'line': line protocol")
    ] = "sonar"
    receiver: Annotated[
        Literal["", "jobanalyzer", "slurm-monitor", "cc-metric-store", "cc-backend"],
        Meta(
            description="receiving program: records that it refuses are omitted; empty: any program"
        ),
    ] = ""
    error_envelopes: Annotated[
        Literal["auto", "send", "log"],
        Meta(
            description="use of envelopes with errors and no data; auto: 'log' over HTTP "
            "and for jobanalyzer, which fails at them, else 'send'"
        ),
    ] = "auto"
    precision: Annotated[
        Literal["auto", "s", "ns"],
        Meta(
            description="unit of the times in lines; auto: that of the URL's precision=, else "
            "seconds for metrics and nanoseconds for events, logs and controls"
        ),
    ] = "auto"
    sending_window: Annotated[
        Duration,
        Meta(description="random delay before sending, to distribute the load of many nodes"),
    ] = Duration("0s")

    takes_errors_alone: ClassVar[bool] = True
    """False if known receivers fail at an envelope without data."""

    def __post_init__(self) -> None:
        """Check that format and precision fit the receiver. Raise ValueError if not."""
        known = self.preset
        if known is None:
            return
        if known.format != self.format:
            raise ValueError(f"receiver: {self.receiver} needs format = {known.format!r}")
        if known.precision and self.precision not in {"auto", known.precision}:
            raise ValueError(f"precision: {self.receiver} takes {known.precision!r} only")

    @property
    def preset(self) -> Receiver | None:
        """The preset of the receiver; None without one."""
        if not self.receiver:
            return None
        from ccagent.records.receivers import RECEIVERS

        return RECEIVERS[self.receiver]

    @property
    def profile(self) -> Profile:
        """What this sink gets of each record."""
        known = self.preset
        if self.format == "line":
            return Profile(
                format="line", receiver=self.receiver, precision=self._choose_precision(known)
            )
        if self.error_envelopes == "auto":
            sends_errors = self.takes_errors_alone and (known is None or known.takes_errors_alone)
        else:
            sends_errors = self.error_envelopes == "send"
        return Profile(receiver=self.receiver, sends_errors_alone=sends_errors)

    def _choose_precision(self, known: Receiver | None) -> TimeUnit:
        """Return the unit of times in lines; empty: that of the kind of message.

        ClusterCockpit's store accepts only seconds for metrics. Its other programs decode times as
        nanoseconds.
        """
        if self.precision != "auto":
            return self.precision
        if known is not None and known.precision:
            return known.precision
        asked = _PRECISION.search(self.url)
        return "" if asked is None else "ns" if asked[1] == "ns" else "s"


CaFile = Annotated[str, Meta(description="certificates to trust; empty: those of the system")]
CertificateFile = Annotated[str, Meta(description="client certificate")]
KeyFile = Annotated[str, Meta(description="key of the client certificate, not encrypted")]
Insecure = Annotated[bool, Meta(description="do not verify the server; a warning at each start")]
AllowCleartext = Annotated[
    bool, Meta(description="send a password or token unencrypted to another machine")
]
