"""The base classes of transports and of their settings."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from msgspec import Meta

from ccagent.config.duration import Duration
from ccagent.config.settings import Settings
from ccagent.records.encoding import Profile
from ccagent.records.message import Format, TimeUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.records.message import Message
    from ccagent.records.receivers import Receiver

_PRECISION = re.compile(r"[?&]precision=(s|ns)(?=&|#|$)")
"""The URL parameter for the unit of times in InfluxDB and compatible databases."""


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


class ProbeResult(NamedTuple):
    """The result of a probe: a try without delivery.

    message: the answer, as a phrase. clock_offset: seconds by which this clock is ahead of the
    receiver's, None if unknown; uncertainty: its maximum error in seconds.
    """

    message: str
    clock_offset: float | None = None
    uncertainty: float = 0.0


class Transport(ABC):
    """Delivers messages to one receiver. Only one thread at a time may use it."""

    Settings: ClassVar[type[SinkSettings]] = SinkSettings
    is_network: ClassVar[bool] = True
    """False for a receiver on this machine. Its queue is in memory."""

    is_one_shot: bool = False
    """True in a one-shot command, which may run at the same time as the daemon."""

    largest_body: int | None = None
    """Maximum body in bytes that the receiver accepts; None until it is known."""

    answer: str = ""
    """The receiver's answer to the last accepted message, as a phrase."""

    def __init__(self, settings: SinkSettings) -> None:  # noqa: B027 - optional
        """Check the settings without connecting. Raise ConfigurationError if they are invalid."""

    @abstractmethod
    def send(self, messages: Sequence[Message]) -> None:
        """Deliver messages in order. Return when the receiver has accepted all of them.

        Raise RetryableError or RejectedError. Its `delivered` counts the messages accepted before.
        """

    def probe(self, message: Message) -> ProbeResult | None:  # noqa: ARG002 - optional
        """Connect and log in as for this message, without delivery and side effects.

        Return None if only a delivery can show whether the receiver works. Raise as `send` does.
        """
        return None

    def close(self) -> None:  # noqa: B027 - optional
        """Close connections and files."""


class NetworkSinkSettings(SinkSettings, frozen=True, kw_only=True):
    """Keys of every sink on the network."""

    renamed: ClassVar[dict[str, str]] = {"allow-clear": "allow-cleartext"}

    user: Annotated[str, Meta(description="user of the password")] = ""
    password_file: Annotated[str, Meta(description="file with the password")] = ""
    ca_file: Annotated[
        str, Meta(description="certificates to trust; empty: those of the system")
    ] = ""
    certificate_file: Annotated[str, Meta(description="client certificate")] = ""
    key_file: Annotated[str, Meta(description="key of the client certificate, not encrypted")] = ""
    insecure: Annotated[
        bool, Meta(description="do not verify the server; a warning at each start")
    ] = False
    allow_cleartext: Annotated[
        bool, Meta(description="send a password or token unencrypted to another machine")
    ] = False
    time_limit: Annotated[
        Duration, Meta(description="maximum time for a connection, and for each answer")
    ] = Duration("10s")
