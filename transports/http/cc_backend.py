"""The transport `ccbackend://` and `ccbackends://` (TLS): events for ClusterCockpit's backend.

Each event is a separate REST request: `POST URL/api/jobs/start_job/`, `/api/jobs/stop_job/` or
`/api/nodestate/`. The backend answers, so an event that it did not accept is sent again; over NATS
it would be lost. A repeated event (the run is known, or has been stopped) counts as accepted. An
event that the backend never takes, such as a second run of a job id within a day, is rejected.

Source of the answers: internal/api/job.go of cc-backend 1.5.4, internal/api/rest.go of 1.4.4.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

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


_START = "/api/jobs/start_job/"
_STOP = "/api/jobs/stop_job/"
_CALLS = {
    ("job", "start_job"): _START,
    ("job", "stop_job"): _STOP,
    ("nodestate", ""): "/api/nodestate/",
}
_CLASHES = "already exists: dbid"
"""Of a 422 to a start: a run of this job id began less than a day earlier, or later."""
_IS_NEW = "UNIQUE constraint failed: job_cache"
"""Of a 500 to a start: this run was started within the last minute."""
_UNKNOWN_RUN = "finding job failed"
_STOPPED = "already been stopped"
_NO_ROUTE = frozenset({404, 405})
_JOBS_PER_PAGE = 20
"""A job with 1,000 nodes has about 30 kB, most jobs 1 kB."""
_MOST_PAGES = 100
_REMEMBERED = 10_000


class _Run(NamedTuple):
    """A function and the run that it is about."""

    path: str
    cluster: str
    job: int
    start: int


class _ListedJob(msgspec.Struct, rename="camel"):
    job_id: int
    start_time: int


class _JobList(msgspec.Struct):
    jobs: list[_ListedJob]


class _JobEvent(_ListedJob):
    cluster: str = ""


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
        self._done: dict[_Run, None] = {}

    def send(self, messages: Sequence[Message]) -> None:
        """Call the function of each event, in order. Raise RejectedError for a refused event."""
        for delivered, message in enumerate(messages):
            for path, payload in _parse_calls(message, delivered):
                self._call(path, payload, delivered)

    def probe(self, message: Message) -> ProbeResult:  # noqa: ARG002 - only the token matters
        """Send a HEAD request for the list of jobs, and an empty start, which changes nothing.

        Raise RetryableError or RejectedError.
        """
        result = self._server.probe(self._build_request(_JOBS, 0))
        answer = self._server.post(self._build_request(_START, 0), b"", 0, lambda *_: True)
        if _status_of(answer) in _NO_ROUTE:
            raise RejectedError(
                f"{self._place}{_START}: {answer}: this backend takes starts and stops of jobs only"
                " over NATS (main.api-subjects in its configuration): use a sink nats:// for the"
                " agent jobs"
            )
        return result

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def _call(self, path: str, payload: bytes, delivered: int) -> None:
        """Send an event. Raise TransportError if the backend does not have it afterwards."""
        said = ""

        def is_repeated(status: int, text: str) -> bool:
            nonlocal said
            said = text
            return path in _IS_REPEATED and _IS_REPEATED[path](status, text)

        answer = self._server.post(
            self._build_request(path, delivered), payload, delivered, is_repeated
        )
        self.answer = answer
        run = _parse_run(path, payload)
        if run is None or run in self._done:
            # A repetition of a refused event is refused again: one dead letter is enough.
            return
        if _CLASHES in said and not self._has_run(run, delivered):
            self._remember(run)
            raise RejectedError(
                f"job {run.job} of {run.cluster}, started at {run.start}: refused, because the"
                f" backend has another run of this job id within a day: {answer}",
                delivered=delivered,
            )
        self._remember(run)
        if _UNKNOWN_RUN in said:
            raise RejectedError(
                f"job {run.job} of {run.cluster}, started at {run.start}: not stopped, because the"
                f" backend does not have this run: {answer}",
                delivered=delivered,
            )

    def _remember(self, run: _Run) -> None:
        if len(self._done) >= _REMEMBERED:
            self._done.clear()
        self._done[run] = None

    def _has_run(self, run: _Run, delivered: int) -> bool:
        """Return whether the backend lists a run. Raise RetryableError if it does not answer."""
        query = f"cluster={quote(run.cluster)}&start-time={run.start}-{run.start}"
        for page in range(1, _MOST_PAGES + 1):
            path = f"{_JOBS}?{query}&items-per-page={_JOBS_PER_PAGE}&page={page}"
            body = self._server.get(self._build_request(path, delivered), delivered)
            try:
                found = msgspec.json.decode(body, type=_JobList).jobs
            except (msgspec.DecodeError, UnicodeDecodeError):
                return False
            if any(each.job_id == run.job and each.start_time == run.start for each in found):
                return True
            if len(found) < _JOBS_PER_PAGE:
                break
        return False

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


def _is_repeated_start(status: int, text: str) -> bool:
    return (status == HTTPStatus.UNPROCESSABLE_ENTITY and _CLASHES in text) or (
        status == HTTPStatus.INTERNAL_SERVER_ERROR and _IS_NEW in text
    )


def _is_repeated_stop(status: int, text: str) -> bool:
    """Return whether a stop changes nothing. A missing route has status 404 with another text."""
    return status in {HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY} and (
        _UNKNOWN_RUN in text or _STOPPED in text
    )


_IS_REPEATED = {_START: _is_repeated_start, _STOP: _is_repeated_stop}


def _status_of(answer: str) -> int:
    return int(answer[:3])


def _parse_run(path: str, payload: bytes) -> _Run | None:
    """Return the run of an event; None for other events."""
    if path not in _IS_REPEATED:
        return None
    try:
        event = msgspec.json.decode(payload, type=_JobEvent)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return _Run(path, event.cluster, event.job_id, event.start_time)


def _parse_calls(message: Message, delivered: int) -> Iterator[tuple[str, bytes]]:
    """Return path and argument of each event. Raise RejectedError for any other line."""
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
