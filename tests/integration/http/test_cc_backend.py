"""Events for ClusterCockpit's backend over REST, against a server that answers as it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest

from ccagent.errors import ConfigurationError, RejectedError, RetryableError
from ccagent.records.encoding import encode
from ccagent.records.message import Message
from ccagent.transports.cc_backend import CcBackendTransport
from ccagent.transports.http import HttpSettings
from tests.support.http_server import Handler, Server, say
from tests.unit.agents.slurm.jobs.test_agent import Slurm, job
from tests.unit.agents.slurm.jobs.test_events import RAN, check_start, check_stop

TOKEN = "eyJhbGciOi.SECRET.x"
NODES = {
    "hostname": str, "states": list, "cpusAllocated": int, "memoryAllocated": int,
    "gpusAllocated": int, "jobsRunning": int,
}  # fmt: skip

RUNNING_ALREADY = "a job with that jobId, cluster and startTime already exists: dbid: 1, jobid: 3"
STARTED_JUST_NOW = (
    "insert into database failed: UNIQUE constraint failed: job_cache.job_id, job_cache.cluster,"
    " job_cache.start_time"
)
UNKNOWN = "finding job failed: sql: no rows in result set"
"""Texts of cc-backend 1.5.4 (MIT License), internal/api/job.go."""


class BackendHandler(Handler):
    """Answers HEAD and GET, too."""

    def do_GET(self) -> None:  # noqa: N802 - its name in the base
        server = cast("BackendServer", self.server)
        url = urlsplit(self.path)
        if url.path == "/cc/api/jobs/start_job/":
            say(404 if server.has_subjects else 405)(self)
            return
        assert url.path == "/cc/api/jobs/"
        query = parse_qs(url.query, strict_parsing=True)
        assert query.keys() == {"cluster", "start-time", "items-per-page"}
        begin, end = map(int, query["start-time"][0].split("-"))
        jobs = [
            {"jobId": number, "startTime": start, "cluster": "fox", "state": state}
            for (number, start), state in server.states.items()
            if begin <= start <= end
        ]
        server.lists += 1
        say(200, json.dumps({"jobs": jobs, "items": 25, "page": 1}).encode())(self)

    def do_HEAD(self) -> None:  # noqa: N802 - its name in the base
        is_known = self.headers["Authorization"] == f"Bearer {TOKEN}"
        say(200 if is_known else 401)(self)


class BackendServer(Server):
    """Keeps the list of jobs, and refuses what ClusterCockpit's backend refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.RequestHandlerClass = BackendHandler
        self.states: dict[tuple[int, int], str] = {}
        self.answers: list[int] = []
        self.is_down = False
        self.has_subjects = False
        self.lists = 0
        self.text = ""
        self.script = _Endless(self.answer)  # type: ignore[assignment]

    def answer(self, handler: Handler) -> None:
        request = self.requests[-1]
        self.text = f"status for {request.headers.get('Authorization')}"
        status = self.status_of(request.path, request.headers, json.loads(request.body))
        self.answers.append(status)
        say(status, self.text.encode())(handler)

    def status_of(self, path: str, headers: dict[str, str], payload: dict[str, Any]) -> int:
        if self.is_down:
            return 503
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401
        if path == "/cc/api/nodestate/":
            assert {name: type(value) for name, value in payload["nodes"][0].items()} == NODES
            return 200
        key = payload["jobId"], payload["startTime"]
        if path == "/cc/api/jobs/start_job/":
            check_start(payload)
            if any(number == key[0] and key[1] - begin < 86400 for number, begin in self.states):
                self.text = RUNNING_ALREADY
                return 422
            self.states[key] = "running"
            return 201
        assert path == "/cc/api/jobs/stop_job/"
        check_stop(payload)
        if key not in self.states:
            self.text = UNKNOWN
            return 404
        if self.states[key] != "running":
            return 422
        self.states[key] = payload["jobState"]
        return 200


class _Endless:
    """A script whose every step is the same."""

    def __init__(self, step: Any) -> None:
        self._step = step

    def popleft(self) -> Any:
        return self._step


@pytest.fixture
def backend() -> Iterator[BackendServer]:
    server = BackendServer()
    yield server
    server.stop()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def transport(backend: BackendServer, token: Path) -> Iterator[CcBackendTransport]:
    transport = CcBackendTransport(
        HttpSettings(url=f"ccbackend://{backend.place}/cc/", format="line", token_file=str(token))
    )
    yield transport
    transport.close()


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def messages_of(slurm: Slurm, *rows: list[str], first: bool = False) -> list[Message]:
    """Return the events of rows that are new."""
    agent = slurm.agent("line")
    if not first:
        slurm.sacct.prints(job(1))
        list(agent.sample(slurm.node))
        agent.commit_sample()
    slurm.sacct.prints(*rows)
    return encode(agent.sample(slurm.node), "line", slurm.node)


def test_the_list_of_jobs_becomes_that_of_slurm(
    backend: BackendServer, transport: CcBackendTransport, slurm: Slurm
) -> None:
    rows = (job(2, "RUNNING", **RAN), job(3, "NODE_FAIL", **RAN, End="1699999900"))
    transport.send(messages_of(slurm, *rows))
    assert backend.states == {(2, 1699999000): "running", (3, 1699999000): "node_fail"}
    assert backend.answers == [201, 201, 200]


def test_what_the_backend_knows_already_counts_as_taken(
    backend: BackendServer, transport: CcBackendTransport, slurm: Slurm
) -> None:
    messages = messages_of(slurm, job(3, **RAN, End="1699999900"))
    transport.send(messages)
    transport.send(messages)
    assert backend.answers == [201, 200, 422, 422]
    assert backend.states == {(3, 1699999000): "completed"}


def test_a_second_run_within_a_day_is_a_dead_letter(
    backend: BackendServer, transport: CcBackendTransport, slurm: Slurm
) -> None:
    """The backend refuses it, and then does not know the run that its stop names."""
    backend.states[3, 1699950000] = "completed"
    messages = messages_of(slurm, job(3, **RAN, End="1699999900"), job(4, "RUNNING", **RAN))
    with pytest.raises(RejectedError, match="job 3 of .*: the backend has another run") as refusal:
        transport.send(messages)
    assert "; 1 more event" in str(refusal.value)
    assert (4, 1699999000) in backend.states
    transport.send(messages)  # repeated events of the same run are no further dead letters


def test_a_start_that_is_repeated_at_once_is_taken(
    backend: BackendServer, transport: CcBackendTransport, slurm: Slurm
) -> None:
    """Within a minute the run is in the backend's cache, and the insertion fails."""
    messages = messages_of(slurm, job(2, "RUNNING", **RAN))
    transport.send(messages)
    backend.script = _Endless(say(500, STARTED_JUST_NOW.encode()))  # type: ignore[assignment]
    transport.send(messages)


def test_repeated_starts_ask_for_jobs_once(
    backend: BackendServer, transport: CcBackendTransport, slurm: Slurm
) -> None:
    backend.states[2, 1699999000] = "running"
    messages = messages_of(slurm, job(2, "RUNNING", **RAN))
    for _ in range(3):
        transport.send(messages)
    assert (backend.answers, backend.lists) == ([422, 422, 422], 1)


def test_a_stop_without_its_route_waits(
    backend: BackendServer, transport: CcBackendTransport, slurm: Slurm
) -> None:
    messages = messages_of(slurm, job(3, **RAN, End="1699999900"))
    backend.script = _Endless(say(404, b"404 page not found"))  # type: ignore[assignment]
    with pytest.raises(RetryableError, match="404"):
        transport.send(messages)


def test_doctor_names_a_backend_with_subjects(
    backend: BackendServer, transport: CcBackendTransport, slurm: Slurm
) -> None:
    """With api-subjects it has no routes for starts and stops."""
    (message, *_) = messages_of(slurm, job(2, "RUNNING", **RAN))
    assert transport.probe(message).message == "it answers HEAD with 200 OK"
    backend.has_subjects = True
    with pytest.raises(RejectedError, match="over NATS only"):
        transport.probe(message)


def test_what_it_did_not_take_is_sent_again_until_it_did(
    backend: BackendServer, transport: CcBackendTransport, slurm: Slurm
) -> None:
    messages = messages_of(slurm, job(3, **RAN, End="1699999900"))
    backend.is_down = True
    with pytest.raises(RetryableError, match=r"/cc/api/jobs/start_job/: 503") as refusal:
        transport.send(messages)
    assert (refusal.value.delivered, refusal.value.is_about_message) == (0, False)
    backend.is_down = False
    transport.send(messages)
    assert backend.states == {(3, 1699999000): "completed"}


def test_another_token_needs_no_restart_and_none_is_shown(
    backend: BackendServer, transport: CcBackendTransport, slurm: Slurm, token: Path
) -> None:
    messages = messages_of(slurm, job(2, "RUNNING", **RAN))
    token.write_text("expired")
    with pytest.raises(RetryableError, match="401") as refusal:
        transport.send(messages)
    assert "expired" not in str(refusal.value)
    with pytest.raises(RejectedError, match="the login is refused"):
        transport.probe(messages[0])
    token.write_text(TOKEN)
    transport.send(messages)
    assert backend.states == {(2, 1699999000): "running"}
    assert transport.probe(messages[0]).message == "it answers HEAD with 200 OK"


def test_nobody_answers(
    transport: CcBackendTransport, backend: BackendServer, slurm: Slurm
) -> None:
    messages = messages_of(slurm, job(2, "RUNNING", **RAN))
    backend.stop()
    with pytest.raises(RetryableError, match="start_job"):
        transport.send(messages)


def test_states_of_nodes(backend: BackendServer, transport: CcBackendTransport) -> None:
    from ccagent.agents.slurm.sinfo import NodeState, node_events
    from tests.unit.agents.slurm.jobs.test_events import NODE

    state = NodeState(
        hostname="c1", states=["idle"], cpus_allocated=0, memory_allocated=0, gpus_allocated=0,
        jobs_running=0,
    )  # fmt: skip
    transport.send(encode(node_events(NODE, [state]), "line", NODE))
    assert backend.answers == [200]


@pytest.mark.parametrize("body", [b"mem_used,hostname=c1,type=node value=1 1700000000\n", b"odd"])
def test_what_is_no_event_is_rejected(transport: CcBackendTransport, body: bytes) -> None:
    with pytest.raises(RejectedError, match="metrics: "):
        transport.send([Message("fox", "c1", "metrics", "line", 1.7e9, body)])


def test_envelopes_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match="format: "):
        CcBackendTransport(HttpSettings(url="ccbackends://cc.example.org"))


def test_a_password_is_refused_because_the_backend_takes_tokens_only(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret")
    settings = HttpSettings(
        url="ccbackends://cc.example.org", format="line", password_file=str(password)
    )
    with pytest.raises(ConfigurationError, match="password-file: .* takes a token-file"):
        CcBackendTransport(settings)
