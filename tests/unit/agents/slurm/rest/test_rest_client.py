"""Requests to slurmrestd: version, login, and the errors of its answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ccagent.agents.slurm.cluster import ClusterAgent, ClusterSettings
from ccagent.agents.slurm.jobs.agent import JobsAgent, JobsSettings
from ccagent.agents.slurm.rest import client
from ccagent.agents.slurm.rest.client import check_rest
from ccagent.agents.slurm.rest.source import RestSource
from ccagent.config.duration import Duration
from ccagent.errors import ConfigurationError
from ccagent.machine.hostlist import expand
from ccagent.machine.node import Node
from ccagent.records.envelopes import ClusterEnvelope, JobsEnvelope, SlurmJob
from tests.support.ports import free_port
from tests.support.slurm_rest import VERSIONS, RestServer, answers
from tests.support.tree import TreeNode

NODE = Node(hostname="master", cluster="fox")
EMPTY: Any = {"jobs": []}
LONG_AGO = Duration("36500d")


@pytest.fixture
def server() -> Iterator[RestServer]:
    with RestServer(answers(44)) as running:
        yield running


def token(**claims: Any) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'HS256'})}.{part(claims)}.signature-of-the-token"


def sample(url: str, **keys: Any) -> tuple[list[SlurmJob], list[str]]:
    """Return the jobs and the errors of one sample."""
    settings = JobsSettings(source="slurmrestd", url=url, max_catch_up=LONG_AGO, **keys)
    jobs: list[SlurmJob] = []
    errors: list[str] = []
    with closing(JobsAgent(settings, frozenset({"sonar"}))) as agent:
        for envelope in agent.sample(NODE):
            assert isinstance(envelope, JobsEnvelope)
            errors += [error.detail for error in envelope.errors]
            jobs += envelope.data.attributes.slurm_jobs if envelope.data else []
    return jobs, errors


@pytest.mark.parametrize("minor", VERSIONS)
def test_jobs_and_nodes_of_each_version(minor: int) -> None:
    with RestServer(answers(minor)) as running:
        jobs, errors = sample(running.url)
        assert errors == []
        assert {job.job_name for job in jobs} >= {"steps", "het", "gpu", "exit 3"}
        settings = ClusterSettings(source="slurmrestd", url=running.url)
        with closing(ClusterAgent(settings, frozenset({"sonar"}))) as agent:
            (envelope,) = agent.sample(NODE)
        assert isinstance(envelope, ClusterEnvelope)
        assert envelope.data is not None
        nodes = {
            tuple(one.states): {name for names in one.names for name in expand(names)}
            for one in envelope.data.attributes.nodes
        }
        assert nodes["MIXED", "RESERVED"] == {"c1-2"}
        assert nodes["UNKNOWN", "NOT_RESPONDING"] == {*expand("c1-[8-10],c2-[01-03]")}
        partitions = {one.name: one.nodes for one in envelope.data.attributes.partitions}
        assert partitions["normal"] == ["c1-[1-2,8-10]", "c2-[01-03]"]
        assert partitions["empty"] == []


@pytest.mark.parametrize(
    ("minor", "query"),
    [(38, "step=7%2C8"), (39, "step=7%2C8"), (40, "step=7&step=8"), (45, "step=7&step=8")],
)
def test_several_jobs_are_one_list_of_each_version(minor: int, query: str) -> None:
    # A real slurmrestd 22.05 takes the last of equal keys, one of 26.05 refuses the comma.
    with RestServer(answers(minor)) as running:
        settings = JobsSettings(source="slurmrestd", url=running.url)
        with closing(RestSource(settings, pytest.fail)) as source:
            list(source.read_ids(NODE, ["7", "8"]))
        assert running.requests[-1][0] == f"/slurmdb/v0.0.{minor}/jobs?{query}"


def test_the_newest_known_version_is_used() -> None:
    served = {**answers(43), **answers(41), "/slurm/v0.0.99/jobs": EMPTY}
    with RestServer(served) as running:
        sample(running.url)
        assert {path.split("/")[2] for path, _ in running.requests[1:]} == {"v0.0.43"}
        running.requests.clear()
        sample(running.url, api_version="v0.0.41")
        assert {path.split("/")[2] for path, _ in running.requests} == {"v0.0.41"}


def test_a_version_that_is_not_served_is_named(server: RestServer) -> None:
    _, errors = sample(server.url, api_version="v0.0.40")
    assert errors == [
        f"slurmrestd {server.url}: /slurmdb/v0.0.40/jobs is not served: set api-version"
    ]
    with RestServer({"/slurm/v0.0.99/jobs": EMPTY}) as other:
        _, errors = sample(other.url)
        assert "none of its API versions is known (v0.0.99): set api-version" in errors[0]


def test_the_token_is_read_for_each_request(server: RestServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(f"SLURM_JWT={token(sun='monitor')}\n")
    settings = JobsSettings(source="slurmrestd", url=server.url, jwt_file=str(file))
    agent = JobsAgent(settings, frozenset({"sonar"}))
    list(agent.sample(NODE))
    file.write_text(token(sun="other"))
    list(agent.sample(NODE))
    agent.close()
    names = [headers["X-SLURM-USER-NAME"] for _, headers in server.requests]
    tokens = [headers["X-SLURM-USER-TOKEN"] for _, headers in server.requests]
    assert (names[0], names[-1]) == ("monitor", "other")
    assert (tokens[0], tokens[-1]) == (token(sun="monitor"), token(sun="other"))


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (401, b"Authentication failure", "the login is refused (Authentication failure)"),
        (511, {"jobs": [], "errors": [{"error_number": 1007, "error": "Protocol authentication"}]},
         "the login is refused (Protocol authentication)"),
        (200, {"jobs": [], "errors": [{"error_number": 1007, "error": "Protocol authentication"}]},
         "the login is refused"),
        (500, {"jobs": [], "errors": [{"description": "Failed while looking for jobs"}]},
         "500 Internal Server Error: Failed while looking for jobs"),
        (200, {"jobs": [], "errors": [{"error_number": 7000, "error": "Unable to connect to DB"}]},
         "Unable to connect to DB"),
        (200, b"<html>a portal</html>", "is not JSON of Slurm"),
        (200, b"[1, 2]", "is not JSON of Slurm"),
        (200, b'{"jobs": 5}', "is not JSON of Slurm"),
        (200, b'{"job', "is not JSON of Slurm"),
        (200, b'{"jobs": ' + b"[" * 100_000, "is not JSON of Slurm"),
        (200, {"nodes": []}, "no jobs in the answer"),
        (502, b"Bad Gateway", "502 Bad Gateway"),
        (200, b"", "is not JSON of Slurm"),
    ],
)  # fmt: skip
def test_an_answer_without_jobs_is_an_error(
    server: RestServer, status: int, answer: Any, reason: str
) -> None:
    path = "/slurmdb/v0.0.44/jobs"
    server.answers[path], server.status[path] = answer, status
    _, errors = sample(server.url)
    (error,) = errors
    assert error.startswith(f"slurmrestd {server.url}: ")
    assert reason in error


def test_nothing_found_is_no_error(server: RestServer) -> None:
    path = "/slurmdb/v0.0.44/jobs"
    server.answers[path] = {"jobs": [], "errors": [{"error_number": 9003, "error": "Nothing"}]}
    server.status[path] = 500
    assert sample(server.url)[1] == []


def test_one_odd_record_costs_itself(server: RestServer, caplog: pytest.LogCaptureFixture) -> None:
    whole, _ = sample(server.url)
    path = "/slurmdb/v0.0.44/jobs"
    jobs = server.answers[path]["jobs"]
    server.answers[path] = {"jobs": [5, {"job_id": "x"}, *jobs, {"job_id": 3}, None], "errors": []}
    jobs, errors = sample(server.url)
    assert (jobs, errors) == (whole, [])
    assert caplog.text.count("is skipped") >= 4


def test_a_node_without_a_name_costs_no_node_of_the_same_state(server: RestServer) -> None:
    complaints: list[str] = []
    settings = JobsSettings(source="slurmrestd", url=server.url)
    with closing(RestSource(settings, complaints.append)) as source:
        whole = source.node_lines(NODE)
        nodes = server.answers["/slurm/v0.0.44/nodes"]["nodes"]
        nodes += [node | {"name": name} for node in [*nodes] for name in (None, "a b")]
        assert (source.node_lines(NODE), len(complaints)) == (whole, len(nodes) * 2 // 3)


def test_nodes_that_are_added_later_are_known_after_an_hour(
    server: RestServer, tmp_path: Path
) -> None:
    node = TreeNode(tmp_path)
    path = "/slurm/v0.0.44/nodes"
    complaints: list[str] = []
    settings = JobsSettings(source="slurmrestd", url=server.url)
    with closing(RestSource(settings, complaints.append)) as source:
        first = source.read_topology(node)
        added = server.answers[path]["nodes"][0] | {"name": "new"}
        server.answers[path]["nodes"].append(added)
        assert source.read_topology(node) == first
        node.still.passed += 3600
        server.status[path] = 500
        assert source.read_topology(node) == first
        assert len(complaints) == 1
        del server.status[path]
        assert source.read_topology(node).keys() - first.keys() == {"new"}


def test_without_the_queue_jobs_of_accounting_are_sent(
    server: RestServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers["/slurm/v0.0.44/jobs"] = b"garbage"
    jobs, errors = sample(server.url)
    assert (errors, len({job.job_id for job in jobs}) > 8) == ([], True)
    assert "held and dependent jobs are missing: slurmrestd" in caplog.text


def test_part_of_an_answer_is_used_and_the_rest_named(
    server: RestServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers["/slurmdb/v0.0.44/jobs"]["errors"] = [{"description": "a cluster is down"}]
    jobs, errors = sample(server.url)
    assert (errors, bool(jobs)) == ([], True)
    assert "part of the answer is missing: a cluster is down" in caplog.text


def test_a_too_large_answer_says_what_to_do(
    server: RestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_LARGEST_ANSWER", 65 * 1024)
    _, errors = sample(server.url)
    assert errors[0].endswith("/slurmdb/v0.0.44/jobs has more than 0 MiB: lower max-catch-up")


def test_an_unreachable_server_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert sample(url)[1] == [f"slurmrestd {url}: connection refused"]
    assert "No such file or directory" in sample("unix:/nonexistent/socket")[1][0]


def test_a_version_that_has_both_parts_is_preferred() -> None:
    served = {**answers(43), "/slurm/v0.0.44/jobs": EMPTY}
    with RestServer(served) as running:
        assert sample(running.url)[1] == []


def test_a_token_with_an_odd_user_is_refused(server: RestServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(token(sun="monitor\r\nX-SLURM-USER-NAME: root"))
    (error,) = sample(server.url, jwt_file=str(file))[1]
    assert error == f"{file}: its user is not a name in ASCII"


def test_no_error_repeats_the_token(server: RestServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    secret = token(sun="monitor", exp=1)
    file.write_text(secret)
    path = "/slurmdb/v0.0.44/jobs"
    server.answers[path] = {"jobs": [], "errors": [{"description": f"bad token {secret}"}]}
    _, errors = sample(server.url, jwt_file=str(file))
    assert secret[:12] not in errors[0]
    assert "the token in jwt-file has expired" in errors[0]


def test_invalid_utf8_of_a_user_is_kept_as_text() -> None:
    body = json.dumps(answers(44)["/slurmdb/v0.0.44/jobs"]).encode()
    found = answers(44) | {"/slurmdb/v0.0.44/jobs": body.replace(b'"exit 3"', b'"bad\xff\xfeutf"')}
    with RestServer(found) as running:
        jobs, errors = sample(running.url)
    assert errors == []
    assert r"bad\xff\xfeutf" in {job.job_name for job in jobs}


def test_the_doctor_names_what_fails(server: RestServer) -> None:
    server.answers["/slurm/v0.0.44/ping"] = {"pings": [{"hostname": "master"}], "errors": []}
    server.answers["/slurmdb/v0.0.44/clusters"] = b"Authentication failure"
    server.status["/slurmdb/v0.0.44/clusters"] = 401
    settings = JobsSettings(source="slurmrestd", url=server.url)
    accounting, controller = (check.find() for check in check_rest(settings, ("slurmdb", "slurm")))
    assert controller is not None
    assert accounting is not None
    assert controller.state == "good"
    assert accounting.state == "problem"
    assert "set jwt-file" in accounting.found


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"url": "ftp://x"}, "url: expected https://HOST:PORT"),
        ({"url": "unix:run/socket"}, "url: expected unix:/PATH"),
        ({"url": "http://slurm.example.org:6820"}, "unencrypted"),
        ({"url": "unix:/run/socket", "insecure": True}, "for https only"),
        ({"url": "unix:/run/socket", "jwt_file": "/nonexistent"}, "/nonexistent: No such file"),
        ({"url": "https://user:secret@x"}, "set user and password-file"),
        ({"job_script": True}, "job-script: slurmrestd does not give scripts"),
    ],
)
def test_wrong_keys_are_named(tmp_path: Path, keys: dict[str, Any], reason: str) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(token(sun="monitor"))
    of_agent: dict[str, Any] = {"jwt_file": str(file), **keys}
    settings = JobsSettings(source="slurmrestd", **of_agent)
    with pytest.raises(ConfigurationError, match=r"agents\.jobs\.") as caught:
        JobsAgent(settings, frozenset({"sonar"}))
    assert reason in str(caught.value)
    assert "secret@" not in str(caught.value)
