"""The transport `kprox://` and `kproxs://` (TLS): Kafka through Sonar's REST proxy.

For nodes that reach the outside only through an HTTP proxy. A request contains a frame for each
message: a line with a control object in JSON, then the data. Source: Sonar 0.19,
util/kafka-proxy/kprox.go and src/datasink/kafka.rs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from ccagent.config.secret import read_secret
from ccagent.errors import ConfigurationError, RejectedError, RetryableError
from ccagent.transports.base import ProbeResult
from ccagent.transports.http import HttpSettings, HttpTransport, Post, with_scheme
from ccagent.transports.kafka import is_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.records.message import Message

_SCHEMES = {"kprox": "http", "kproxs": "https"}


class KproxSettings(HttpSettings, frozen=True, kw_only=True):
    """The keys of a sink `kprox://` or `kproxs://`: those of `http://`."""

    takes_errors_alone: ClassVar[bool] = True


class _ControlObject(msgspec.Struct, rename="kebab", omit_defaults=True):
    """The line before the data of a message. data_size: bytes of the data."""

    topic: str
    key: str
    client: str
    data_size: int
    sasl_user: str = ""
    sasl_password: str = ""


class KproxTransport(HttpTransport):
    """Posts the frames of many messages per request, with the login in each frame.

    The proxy answers before Kafka has the messages. It keeps them in memory until then.
    """

    Settings = KproxSettings

    def __init__(self, settings: KproxSettings) -> None:
        if settings.gzip:
            raise ConfigurationError("gzip: the proxy refuses compressed requests")
        if settings.token_file:
            raise ConfigurationError("token-file: the proxy takes a user and a password-file")
        super().__init__(with_scheme(settings, _SCHEMES))

    def probe(self, message: Message) -> ProbeResult:
        """Post no frames: the proxy answers only POST requests. The login is not checked."""
        answer = self._server.post(self._build_request(message, 0), b"", 0)
        return ProbeResult(f"it answers an empty request with {answer}")

    def _group(self, messages: Sequence[Message], begin: int, end: int) -> Iterator[Post]:
        """Yield the frames of messages up to `max-payload`. Raise TransportError."""
        frames: list[bytes] = []
        size = 0
        for number in range(begin, end):
            try:
                frame = self._make_frame(messages[number], number)
            except RejectedError:
                if frames:
                    yield Post(b"".join(frames), len(frames))
                raise
            if frames and size + len(frame) > self._limit:
                yield Post(b"".join(frames), len(frames))
                frames, size = [], 0
            frames.append(frame)
            size += len(frame)
        if frames:
            yield Post(b"".join(frames), len(frames))

    def _make_frame(self, message: Message, delivered: int) -> bytes:
        """Return control object and data of a message. Raise RejectedError or RetryableError."""
        topic = message.topic
        if not is_topic(topic):
            # The proxy would accept the message and drop it.
            text = f"{topic!r} is not a topic: letters, digits, '.', '_' and '-' only"
            raise RejectedError(text, delivered=delivered)
        control = _ControlObject(
            topic, message.node, f"{message.cluster}/{message.node}", len(message.body)
        )
        if password := self._read_password(delivered):
            control.sasl_user = self._settings.user or message.cluster
            control.sasl_password = password
        return b"\n%b\n%b" % (msgspec.json.encode(control), message.body)

    def _read_password(self, delivered: int) -> str:
        """Return the password; empty without one. Raise RetryableError."""
        if not self._settings.password_file:
            return ""
        try:
            return read_secret(self._settings.password_file)
        except ConfigurationError as error:
            # The file may be valid at the next attempt.
            raise RetryableError(str(error), delivered=delivered) from error

    def _build_headers(self, message: Message) -> tuple[dict[str, str], list[str]]:
        """Return the headers of a request, and the secrets in its body."""
        headers, secrets = super()._build_headers(message)
        headers.pop("Authorization", None)
        return headers | {"Content-Type": "application/octet-stream"}, secrets

    def _has_own_url(self, message: Message) -> bool:  # noqa: ARG002 - one URL for all
        return False

    def _build_path(self, message: Message) -> str:  # noqa: ARG002 - one URL for all
        """Return path and query of the proxy's endpoint."""
        query = f"?{self._target.query}" if self._target.query else ""
        return (self._target.path or "/") + query
