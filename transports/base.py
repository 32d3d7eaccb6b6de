"""What every transport is."""

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
"""In each envelope without data, and in samples that have errors of their own."""

_PRECISION = re.compile(r"[?&]precision=(s|ns)(?=&|#|$)")
"""How InfluxDB, and stores that take its place, are asked to read times."""


class SinkSettings(Settings, frozen=True, kw_only=True):
    """The keys that every table `[sinks.NAME]` knows."""

    url: Annotated[str, Meta(description="where to: the scheme names the transport")]
    format: Annotated[
        Format, Meta(description="'sonar': JSON envelopes; 'line': line protocol")
    ] = "sonar"
    receiver: Annotated[
        Literal["", "jobanalyzer", "slurm-monitor", "cc-metric-store", "cc-backend"],
        Meta(description="program at the other end: what it refuses is left out; empty: any"),
    ] = ""
    error_envelopes: Annotated[
        Literal["auto", "send", "log"],
        Meta(
            description="what becomes of envelopes with errors and no data; auto: 'log' over HTTP "
            "and for jobanalyzer, whose insert breaks at them, else 'send'"
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
        Duration, Meta(description="send at a random moment within it, so that nodes spread out")
    ] = Duration("0s")

    takes_errors_alone: ClassVar[bool] = True
    """False where receivers are known that break at an envelope without data."""

    def __post_init__(self) -> None:
        """Refuse what contradicts the receiver. Raises ValueError."""
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

    def fitted(self, message: Message) -> Message | None:
        """Return a message as the receiver takes it, None if it does not.

        Errors of an envelope that is not sent for want of data are logged.
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
        return convert_to_nanoseconds(fitting) if self._is_fine(fitting) else fitting

    @property
    def _sends_errors_alone(self) -> bool:
        if self.error_envelopes != "auto":
            return self.error_envelopes == "send"
        known = self.preset
        return self.takes_errors_alone and (known is None or known.takes_errors_alone)

    def _is_fine(self, message: Message) -> bool:
        """True if times in lines are nanoseconds.

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


class Reached(NamedTuple):
    """What came of reaching the other side without giving it anything.

    said: what it answered, in half a sentence. ahead: seconds by which our clock is ahead of its
    own, None if it doesn't tell; doubt: by how much that may be wrong.
    """

    said: str
    ahead: float | None = None
    doubt: float = 0.0


class Transport(ABC):
    """Carries messages to one receiver. Used by one thread at a time."""

    Settings: ClassVar[type[SinkSettings]] = SinkSettings
    is_network: ClassVar[bool] = True
    """False for a receiver on this machine, whose messages need not wait on disk."""

    is_one_shot: bool = False
    """True for one in a command that ends after it has sent, which may run beside the daemon."""

    largest_body: int | None = None
    """Bytes of the largest body that the receiver takes; None until it is known."""

    answer: str = ""
    """What the other side said when it took the last message, in half a sentence."""

    def __init__(self, settings: SinkSettings) -> None:  # noqa: B027 - not all have any to check
        """Check the settings; connect nowhere yet. Raises ConfigurationError."""

    @abstractmethod
    def send(self, messages: Sequence[Message]) -> None:
        """Deliver messages in order and return when the other side has taken them all.

        Raises RetryableError or RejectedError, whose `delivered` says how many were taken.
        """

    def reach(self, message: Message) -> Reached | None:  # noqa: ARG002 - for those that can
        """Connect and log in as for this message, without delivering it or disturbing others.

        None: it can't be told without delivering. Raises as `send` does.
        """
        return None

    def close(self) -> None:  # noqa: B027 - not all hold any
        """Let go of connections and files."""
