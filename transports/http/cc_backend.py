"""The transport `ccbackend://` and `ccbackends://` (TLS): events for ClusterCockpit's backend.

Each event is a request of its own over REST: `POST URL/api/jobs/start_job/`,
`/api/jobs/stop_job/` and `/api/nodestate/`. The backend answers, so an event that it did not take
is sent again; over NATS it is lost. A repeated event (the job runs already, or has been stopped)
counts as taken.
"""

from __future__ import annotations

from http.client import HTTPException, responses
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent import PRODUCER, __version__
from ccagent.config.secret import read_secret
from ccagent.errors import ConfigurationError, RejectedError, RetryableError
from ccagent.log import logger
from ccagent.records.line_protocol.decoding import decode_lines
from ccagent.records.line_protocol.lines import LineError
from ccagent.transports.base import ProbeResult, SinkSettings, Transport
from ccagent.transports.http.answers import check_status
from ccagent.transports.http.connection import HttpConnection, is_broken_off
from ccagent.transports.http.settings import (
    HttpSettings,
    check_settings,
    server_of_url,
    split_proxy,
)
from ccagent.transports.network import make_tls_context
from ccagent.transports.peer_text import hide_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.records.message import Message

_SCHEMES = {"ccbackend": "http", "ccbackends": "https"}
_LOGIN_REFUSED = frozenset({401, 403, 407})
_SERVER_ERROR = 500
_JOBS = "/api/jobs/"


class _BackendCall(NamedTuple):
    """A function of the backend: its path, and its status for a repeated event."""

    path: str
    known: frozenset[int] = frozenset()


_CALLS = {
    ("job", "start_job"): _BackendCall("/api/jobs/start_job/", frozenset({422})),
    ("job", "stop_job"): _BackendCall("/api/jobs/stop_job/", frozenset({404, 422})),
    ("nodestate", ""): _BackendCall("/api/nodestate/"),
}


class CcBackendTransport(Transport):
    """Calls a function of ClusterCockpit's backend for each event, over one connection.

    A repeated event changes nothing there, so a message is repeated as a whole.
    """

    Settings = HttpSettings

    def __init__(self, settings: SinkSettings) -> None:
        scheme, _, rest = settings.url.partition(":")
        url = f"{_SCHEMES.get(scheme.lower(), scheme)}:{rest}"
        self._settings = (
            msgspec.structs.replace(settings, url=url)
            if isinstance(settings, HttpSettings)
            else HttpSettings(url=url, format=settings.format)
        )
        if self._settings.format != "line":
            raise ConfigurationError('format: ClusterCockpit\'s backend takes events: "line"')
        target = check_settings(self._settings)
        self._prefix = target.path.rstrip("/")
        self._place = f"{target.scheme}://{target.netloc}{self._prefix}"
        self._connection = HttpConnection(
            server_of_url(target),
            make_tls_context(self._settings) if target.scheme == "https" else None,
            self._settings.time_limit.seconds,
            split_proxy(self._settings),
        )

    def send(self, messages: Sequence[Message]) -> None:
        """Call the function of each event, in order."""
        for delivered, message in enumerate(messages):
            for call, payload in _parse_calls(message, delivered):
                self._call(call, payload, delivered)

    def probe(self, message: Message) -> ProbeResult:  # noqa: ARG002 - only the token matters
        """Send a HEAD request for the list of jobs. Raises RetryableError or RejectedError."""
        headers, token = self._build_headers(0)
        place = f"{self._place}{_JOBS}"
        try:
            answer = self._connection.request_head(f"{self._prefix}{_JOBS}", headers)
        except (HTTPException, OSError, UnicodeError) as error:
            raise RetryableError(
                f"{place}: {self._connection.explain(error, [token])}"
            ) from None  # the cause may repeat a secret
        said = f"{answer.status} {responses.get(answer.status, '')}"
        if answer.status in _LOGIN_REFUSED:
            raise RejectedError(f"{place}: {said}: the token is refused")
        if answer.status >= _SERVER_ERROR:
            raise RetryableError(f"{place}: {said}")
        return ProbeResult(f"it answers HEAD with {said}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _build_headers(self, delivered: int) -> tuple[dict[str, str], str]:
        """Return the headers of a request, and the token. Raises RetryableError."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"{PRODUCER}/{__version__}",
        }
        if not self._settings.token_file:
            return headers, ""
        try:
            token = read_secret(self._settings.token_file)
        except ConfigurationError as error:
            # The file may be right again at the next attempt.
            raise RetryableError(str(error), delivered=delivered) from error
        return headers | {"Authorization": f"Bearer {token}"}, token

    def _call(self, call: _BackendCall, payload: bytes, delivered: int) -> None:
        headers, token = self._build_headers(delivered)
        place = f"{self._place}{call.path}"
        try:
            answer = self._connection.post(f"{self._prefix}{call.path}", payload, headers)
        except (HTTPException, OSError, UnicodeError) as error:
            raise RetryableError(
                f"{place}: {self._connection.explain(error, [token])}",
                delivered=delivered,
                is_about_message=self._connection.is_sent and is_broken_off(error),
            ) from None  # the cause may repeat a secret
        text = answer.body.decode("utf-8", "replace")
        said = f"{answer.status} {responses.get(answer.status, '')}"
        if text:
            said += f": {hide_secrets(text, [token])}"
        if answer.status in call.known:
            logger.debug("%s: %s: a repeated event", place, said)
            return
        check_status(
            answer.status,
            f"{place}: {said}",
            text,
            retry_after=answer.retry_after,
            has_own_url=True,
            delivered=delivered,
        )
        self.answer = said


def _parse_calls(message: Message, delivered: int) -> Iterator[tuple[_BackendCall, bytes]]:
    """Return function and argument of each event. Raises RejectedError if a line is no event."""
    try:
        for line in decode_lines(message.body.decode()):
            call = _CALLS.get((line.measurement, line.tags.get("function", "")))
            if call is None or line.field != "event" or not isinstance(line.value, str):
                raise RejectedError(
                    f"{message.kind}: {line.measurement} is no event that ClusterCockpit's backend "
                    "takes; name this sink only in the agents jobs and cluster",
                    delivered=delivered,
                )
            yield call, line.value.encode()
    except (LineError, UnicodeDecodeError) as error:
        raise RejectedError(f"{message.kind}: {error}", delivered=delivered) from error
