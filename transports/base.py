"""The base classes of transports and of their settings."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from msgspec import Meta

from ccagent.config.duration import Duration
from ccagent.config.settings import Settings
from ccagent.records.message import Format, convert_to_nanoseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.records.message import Message
    from ccagent.records.receivers import Receiver

_ERRORS = b'"errors":['
"""A part of every envelope without data, and of samples that have errors of their own."""

_PRECISION = re.compile(r"[?&]precision=(s|ns)(?=&|#|$)")
"""The parameter by which InfluxDB and its replacements learn the unit of times."""


class SinkSettings(Settings, frozen=True, kw_only=True):
    """Keys of every table `[sinks.NAME]`."""

    url: Annotated[str, Meta(description="destination; the scheme names the transport")]
    format: Annotated[
        Format, Meta(description="'sonar': JSON envelopes; 'line': line protocol")
    ] = "sonar"
    receiver: Annotated[
        Literal["", "jobanalyzer", "slurm-monitor", "cc-metric-store", "cc-backend"],
        Meta(description="program that receives: records that it refuses are left out; empty: any"),
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
        Meta(description="random delay before sending, so that nodes spread out"),
    ] = Duration("0s")

    takes_errors_alone: ClassVar[bool] = True
    """False where known receivers fail at an envelope without data."""

    def __post_init__(self) -> None:
        """Check that format and precision suit the receiver. Raise ValueError."""
        known = self.preset
        if known is None:
            return
        if known.format != self.format:
            raise ValueError(f"receiver: {self.receiver} needs format = {known.format!r}")
        if known.precision and self.precision not in {"auto", known.precision}:
            raise ValueError(f"precision: {self.receiver} takes {known.precision!r} only")

    @property
    def preset(self) -> Receiver | None:
        """The preset of the receiver, None if there is none."""
        if not self.receiver:
            return None
        from ccagent.records.receivers import RECEIVERS

        return RECEIVERS[self.receiver]

    def fit(self, message: Message) -> Message | None:
        """Return a message in the form that the receiver takes; None if it takes no form of it.

        The errors of an envelope without data that is not sent are logged.
        """
        if message.format != self.format:
            return None
        if not self._sends_errors_alone and _ERRORS in message.body:
            from ccagent.records.receivers import is_errors_alone, log_errors

            if is_errors_alone(message):
                log_errors(message, self.receiver or "HTTP")
                return None
        fitting: Message | None = message
        if (known := self.preset) is not None:
            from ccagent.records.receivers import fit_message

            fitting = fit_message(message, known)
        if fitting is None:
            return None
        return convert_to_nanoseconds(fitting) if self._needs_nanoseconds(fitting) else fitting

    @property
    def _sends_errors_alone(self) -> bool:
        if self.error_envelopes != "auto":
            return self.error_envelopes == "send"
        known = self.preset
        return self.takes_errors_alone and (known is None or known.takes_errors_alone)

    def _needs_nanoseconds(self, message: Message) -> bool:
        """Return whether the times in lines are to be nanoseconds.

        ClusterCockpit's store takes metrics in seconds only; its other programs decode times as
        nanoseconds.
        """
        if self.precision != "auto":
            return self.precision == "ns"
        known = self.preset
        if known is not None and known.precision:
            return known.precision == "ns"
        asked = _PRECISION.search(self.url)
        return asked[1] == "ns" if asked else message.kind != "metrics"


class ProbeResult(NamedTuple):
    """The result of trying a receiver without delivering a message.

    message: the answer, in half a sentence. clock_offset: seconds by which our clock is ahead of
    the receiver's, None if unknown; uncertainty: seconds by which that may be wrong.
    """

    message: str
    clock_offset: float | None = None
    uncertainty: float = 0.0


class Transport(ABC):
    """Delivers messages to one receiver. Used by one thread at a time."""

    Settings: ClassVar[type[SinkSettings]] = SinkSettings
    is_network: ClassVar[bool] = True
    """False for a receiver on this machine, whose queue need not be on disk."""

    is_one_shot: bool = False
    """True in a command that ends after it has sent, and may run beside the daemon."""

    largest_body: int | None = None
    """Bytes of the largest body that the receiver takes; None until it is known."""

    answer: str = ""
    """The receiver's answer to the last message that it took, in half a sentence."""

    def __init__(self, settings: SinkSettings) -> None:  # noqa: B027 - optional
        """Check the settings without connecting. Raise ConfigurationError."""

    @abstractmethod
    def send(self, messages: Sequence[Message]) -> None:
        """Deliver messages in order. Return when the receiver has taken them all.

        Raise RetryableError or RejectedError, whose `delivered` counts the messages taken before.
        """

    def probe(self, message: Message) -> ProbeResult | None:  # noqa: ARG002 - optional
        """Connect and log in as for this message, without delivering it or disturbing others.

        Return None if only a delivery can show whether the receiver is there. Raise as `send`.
        """
        return None

    def close(self) -> None:  # noqa: B027 - optional
        """Close connections and files."""
