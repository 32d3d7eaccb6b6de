"""The transport `ccbackend://` and `ccbackends://` (TLS): events for ClusterCockpit's backend.

Each event is a separate REST request: `POST URL/api/jobs/start_job/`, `/api/jobs/stop_job/` or
`/api/nodestate/`. The backend answers, so an event that it did not accept is sent again; over NATS
it would be lost. A repeated event (the job already runs, or has been stopped) counts as accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent import PRODUCER, __version__
from ccagent.config.secret import read_secret
from ccagent.errors import ConfigurationError, RejectedError, RetryableError
from ccagent.records.line_protocol.lines import LineError
from ccagent.transports.base import ProbeResult, Transport
from ccagent.transports.http.settings import HttpSettings, check_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.records.message import Message
    from ccagent.transports.http.server import HttpRequest

_SCHEMES = {"ccbackend": "http", "ccbackends": "https"}
_JOBS = "/api/jobs/"


class _BackendCall(NamedTuple):
    """A function of the backend: its path, and its status for a repeated event."""

    path: str
    repeated: frozenset[int] = frozenset()


_CALLS = {
    ("job", "start_job"): _BackendCall("/api/jobs/start_job/", frozenset({422})),
    ("job", "stop_job"): _BackendCall("/api/jobs/stop_job/", frozenset({404, 422})),
    ("nodestate", ""): _BackendCall("/api/nodestate/"),
}


class CcBackendTransport(Transport):
    """Calls a function of ClusterCockpit's backend for each event, over one connection.

    A repeated event does not change the backend, so the whole message is repeated.
    """

    Settings = HttpSettings

    def __init__(self, settings: HttpSettings) -> None:
        from ccagent.transports.http.server import HttpServer

        scheme, _, rest = settings.url.partition(":")
        url = f"{_SCHEMES.get(scheme.lower(), scheme)}:{rest}"
        self._settings = msgspec.structs.replace(settings, url=url)
        if settings.format != "line":
            raise ConfigurationError('format: ClusterCockpit\'s backend takes events: "line"')
        target = check_settings(self._settings)
        self._prefix = target.path.rstrip("/")
        self._place = f"{target.scheme}://{target.netloc}{self._prefix}"
        self._server = HttpServer(self._settings, target)

    def send(self, messages: Sequence[Message]) -> None:
        """Call the function of each event, in order."""
        for delivered, message in enumerate(messages):
            for call, payload in _parse_calls(message, delivered):
                request = self._build_request(call.path, delivered)
                self.answer = self._server.post(request, payload, delivered, call.repeated)

    def probe(self, message: Message) -> ProbeResult:  # noqa: ARG002 - only the token matters
        """Send a HEAD request for the list of jobs. Raise RetryableError or RejectedError."""
        return self._server.probe(self._build_request(_JOBS, 0))

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def _build_request(self, path: str, delivered: int) -> HttpRequest:
        """Return a request with the token. Raise RetryableError if the token can't be read."""
        from ccagent.transports.http.server import HttpRequest

        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"{PRODUCER}/{__version__}",
        }
        secrets: list[str] = []
        if self._settings.token_file:
            try:
                secrets = [read_secret(self._settings.token_file)]
            except ConfigurationError as error:
                # The file may be valid at the next attempt.
                raise RetryableError(str(error), delivered=delivered) from error
            headers["Authorization"] = f"Bearer {secrets[0]}"
        return HttpRequest(f"{self._place}{path}", f"{self._prefix}{path}", headers, secrets)


def _parse_calls(message: Message, delivered: int) -> Iterator[tuple[_BackendCall, bytes]]:
    """Return function and argument of each event. Raise RejectedError for any other line."""
    from ccagent.records.line_protocol.decoding import decode_lines

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
