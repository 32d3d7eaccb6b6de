"""The transport `ccbackend://` and `ccbackends://` (TLS): events for ClusterCockpit's backend.

Each event is a separate REST request: `POST URL/api/jobs/start_job/`, `/api/jobs/stop_job/` or
`/api/nodestate/`. The backend answers, so an event that it did not accept is sent again; over NATS
it would be lost. A repeated event (the job already runs, or has been stopped) counts as accepted.
Other events that the backend refuses make their message a dead letter, after its other events.

Statuses and texts: internal/api/job.go of cc-backend 1.5.4. A start is answered

- 422 if a run with the same job id began less than a day earlier: this one, or another;
- 500 with `UNIQUE constraint failed: job_cache` if the same start arrived within the last minute.

A stop is answered 404 with `finding job failed` if the backend does not know the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from ccagent.errors import ConfigurationError, RejectedError, RetryableError
from ccagent.records.line_protocol import LineError
from ccagent.transports.http import HttpTransport, with_scheme

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.net.http_client import HttpAnswer
    from ccagent.records.message import Message
    from ccagent.transports.base import ProbeResult
    from ccagent.transports.http import HttpSettings
    from ccagent.transports.http_server import HttpRequest

_SCHEMES = {"ccbackend": "http", "ccbackends": "https"}
_JOBS = "/api/jobs/"
_NOT_FOUND, _UNPROCESSABLE, _SERVER_ERROR = 404, 422, 500
_START = "/api/jobs/start_job/"
_STOP = "/api/jobs/stop_job/"
_PATHS = {
    ("job", "start_job"): _START,
    ("job", "stop_job"): _STOP,
    ("nodestate", ""): "/api/nodestate/",
}
_SAME_RUN = b"UNIQUE constraint failed: job_cache"
_UNKNOWN_RUN = b"finding job failed"
_LARGEST_LIST = 16 * 1024 * 1024
_JOBS_OF_A_SECOND = 10_000
_KNOWN_RUNS = 50_000
_KNOWN_REFUSALS = 1000


class _Run(msgspec.Struct, rename="camel", frozen=True):
    """The fields of an event that identify a run of a job."""

    job_id: int
    cluster: str
    start_time: int


class _StartedJob(msgspec.Struct, rename="camel", frozen=True):
    job_id: int
    start_time: int


class _JobList(msgspec.Struct, frozen=True):
    """The used part of the answer to GET /api/jobs/."""

    jobs: list[_StartedJob] = []


class CcBackendTransport(HttpTransport):
    """Calls a function of ClusterCockpit's backend for each event, over one connection.

    A repeated event does not change the backend, so the whole message is repeated.
    """

    def __init__(self, settings: HttpSettings) -> None:
        if settings.format != "line":
            raise ConfigurationError('format: ClusterCockpit\'s backend takes events: "line"')
        if settings.password_file:
            raise ConfigurationError("password-file: ClusterCockpit's backend takes a token-file")
        super().__init__(with_scheme(settings, _SCHEMES), _LARGEST_LIST)
        self.largest_body = None
        self._prefix = self._target.path.rstrip("/")
        self._place = f"{self._target.scheme}://{self._target.netloc}{self._prefix}"
        self._known: dict[_Run, None] = {}
        self._refused: set[tuple[str, _Run | None]] = set()

    def send(self, messages: Sequence[Message]) -> None:
        """Call the function of each event, in order.

        Raise RejectedError, after the other events of its message, for an event that is refused.
        """
        for delivered, message in enumerate(messages):
            refused: list[str] = []
            for path, payload in _parse_calls(message, delivered):
                request = self._make_call(message, path, delivered)
                answer, self.answer = self._server.exchange(request, payload, delivered)
                if path == _START and answer.status == _UNPROCESSABLE:
                    reason = self._check_start(message, payload, delivered)
                elif path == _STOP and answer.status == _NOT_FOUND and _UNKNOWN_RUN in answer.body:
                    reason = "the backend does not know this run of the job"
                elif _is_repeated(path, answer):
                    continue
                else:
                    self._server.check(request, answer, self.answer, delivered)
                    if path == _START:
                        self._remember(payload)
                    continue
                if reason and self._is_first_refusal(path, payload):
                    refused.append(f"{request.place}: {_describe(payload)}: {reason}")
            if refused:
                more = f"; {len(refused) - 1} more events" if len(refused) > 1 else ""
                raise RejectedError(refused[0] + more, delivered=delivered)

    def probe(self, message: Message) -> ProbeResult:
        """Ask for the list of jobs (HEAD) and for the function that starts a job.

        Raise RetryableError or RejectedError.
        """
        result = self._server.probe(self._make_call(message, _JOBS, 0))
        request = self._make_call(message, _START, 0)
        answer, _ = self._server.exchange(request, None, 0)
        if answer.status == _NOT_FOUND:
            raise RejectedError(
                f"{request.place}: 404: this backend takes the events of jobs over NATS only"
                " (api-subjects in its configuration): use a sink nats:// for the agent jobs"
            )
        return result

    def _check_start(self, message: Message, payload: bytes, delivered: int) -> str:
        """Return the reason for a refused start; empty if the backend has this run.

        Raise TransportError if the backend does not answer with its jobs.
        """
        run = _decode_run(payload)
        if run is None or run in self._known:
            return "" if run else "the event has no jobId, cluster and startTime"
        query = urlencode({
            "cluster": run.cluster, "start-time": f"{run.start_time}-{run.start_time}",
            "items-per-page": _JOBS_OF_A_SECOND,
        })  # fmt: skip
        request = self._make_call(message, f"{_JOBS}?{query}", delivered)
        answer, status = self._server.exchange(request, None, delivered)
        self._server.check(request, answer, status, delivered)
        try:
            jobs = msgspec.json.decode(answer.body, type=_JobList).jobs
        except msgspec.MsgspecError as error:
            raise RetryableError(
                f"{request.place}: not a list of jobs: {error}", delivered=delivered
            ) from error
        if any((job.job_id, job.start_time) == (run.job_id, run.start_time) for job in jobs):
            self._remember(payload)
            return ""
        return "the backend has another run of this job id, which began less than a day earlier"

    def _is_first_refusal(self, path: str, payload: bytes) -> bool:
        """Return whether an event was not refused before: repetitions need no dead letter each."""
        key = (path, _decode_run(payload))
        is_first = key not in self._refused
        if len(self._refused) >= _KNOWN_REFUSALS:
            self._refused.clear()
        self._refused.add(key)
        return is_first

    def _remember(self, payload: bytes) -> None:
        """Remember that the backend has a run: repeated starts need no list of jobs."""
        run = _decode_run(payload)
        if run is not None:
            self._known[run] = None
        if len(self._known) > _KNOWN_RUNS:
            del self._known[next(iter(self._known))]

    def _make_call(self, message: Message, path: str, delivered: int) -> HttpRequest:
        """Return a request with the token. Raise RetryableError if the token can't be read."""
        request = self._build_request(message, delivered)
        request.headers["Content-Type"] = "application/json"
        return request._replace(
            place=self._place + path, path=self._prefix + path, own=(), has_own_url=True
        )


def _is_repeated(path: str, answer: HttpAnswer) -> bool:
    """Return whether the answer is that to a repeated event."""
    if path == _STOP:
        return answer.status == _UNPROCESSABLE
    return path == _START and answer.status == _SERVER_ERROR and _SAME_RUN in answer.body


def _describe(payload: bytes) -> str:
    run = _decode_run(payload)
    return f"job {run.job_id} of {run.cluster}, started at {run.start_time}" if run else "an event"


def _decode_run(payload: bytes) -> _Run | None:
    try:
        return msgspec.json.decode(payload, type=_Run)
    except msgspec.MsgspecError:
        return None


def _parse_calls(message: Message, delivered: int) -> Iterator[tuple[str, bytes]]:
    """Return path and argument of each event. Raise RejectedError for any other line."""
    from ccagent.records.line_protocol import decode_lines

    try:
        for line in decode_lines(message.body.decode()):
            path = _PATHS.get((line.measurement, line.tags.get("function", "")))
            if path is None or line.field != "event" or not isinstance(line.value, str):
                raise RejectedError(
                    f"{message.kind}: {line.measurement} is no event that ClusterCockpit's backend "
                    "takes; name this sink only in the agents jobs and cluster",
                    delivered=delivered,
                )
            yield path, line.value.encode()
    except (LineError, UnicodeDecodeError) as error:
        raise RejectedError(f"{message.kind}: {error}", delivered=delivered) from error
