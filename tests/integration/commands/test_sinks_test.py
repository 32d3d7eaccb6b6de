"""`ccagent sinks test`: a marked message, what the other side says, and why not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ccagent.commands.sink_probe import MARK
from tests.support.http_server import Server, say
from tests.support.nats_server import Bench
from tests.support.running import CCAGENT
from tests.support.schema import validate


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CCAGENT, "sinks", "test", *arguments], capture_output=True, text=True, check=False
    )


def test_a_url_gets_one_marked_message(server: Server) -> None:
    server.script.append(say(200, b'{"stored":1}'))
    result = run(f"http://{server.place}/in", "--cluster", "x.org")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == 'taken: 200 OK: {"stored":1}\n'
    (request,) = server.requests
    assert request.path == "/in/sample"
    validate("SampleEnvelope", request.body)
    attributes = json.loads(request.body)["data"]["attributes"]
    assert attributes["cluster"] == "x.org"
    assert [error["detail"] for error in attributes["errors"]] == [MARK]


def test_points_are_marked_by_their_name(server: Server) -> None:
    assert run(f"http://{server.place}/write", "--format", "line").returncode == 0
    (request,) = server.requests
    assert request.body.startswith(b"ccagent_test,cluster=")


def test_a_sink_of_the_configuration_is_meant_by_its_name(server: Server, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("hidden\n")
    password.chmod(0o600)
    file = tmp_path / "ccagent.toml"
    file.write_text(
        f"""
        topic-prefix = "test"
        [sinks.backend]
        url = "http://{server.place}/in"
        password-file = "{password}"
        user = "fox"
        """
    )
    assert run("backend", "--config", str(file)).returncode == 0
    (request,) = server.requests
    assert request.path == "/in/test.sample"
    assert request.headers["Authorization"].startswith("Basic ")


def test_the_command_line_sets_the_same_keys(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")
    token.chmod(0o600)
    url = f"http://{server.place}/in"
    assert run(url, "--sink-set", f"token-file={token}", "--sink-set", "gzip=true").returncode == 0
    (request,) = server.requests
    assert request.headers["Authorization"] == "Bearer abc"
    assert request.headers["Content-Encoding"] == "gzip"
    result = run(url, "--sink-set", "gzop=true")
    assert result.returncode == 2
    assert "gzop: unknown key; did you mean 'gzip'" in result.stderr


def test_a_refusal_is_shown_with_the_answer(server: Server) -> None:
    server.script.append(say(401, b"who are you?"))
    result = run(f"http://{server.place}/in")
    assert result.returncode == 1
    assert result.stderr == f"ccagent: http://{server.place}/in: 401 Unauthorized: who are you?\n"


@pytest.mark.parametrize(
    ("url", "status", "text"),
    [
        ("http://nowhere.invalid/in", 1, "the name does not resolve"),
        ("http://127.0.0.1:9/in", 1, "connection refused"),
        ("http://fox:hidden@127.0.0.1/", 2, "set user and password-file, or token-file"),
        ("htp://127.0.0.1/", 2, "unknown kind of sink; did you mean 'http'"),
        ("nowhere", 2, "there is no [sinks.nowhere]"),
    ],
)
def test_failures_are_explained_in_one_line(url: str, status: int, text: str) -> None:
    result = run(url)
    assert (result.returncode, result.stdout) == (status, "")
    assert text in result.stderr
    assert result.stderr.count("\n") == 1
    assert "hidden" not in result.stderr


def test_a_directory_and_standard_output_can_be_tried_too(tmp_path: Path) -> None:
    result = run(f"dir:{tmp_path}")
    (file,) = tmp_path.rglob("*.json")
    assert result.stdout == f"taken: appended to {file}\n"
    lines = run("stdout:").stdout.splitlines()
    validate("SampleEnvelope", lines[0])
    assert lines[1:] == ["taken: written to standard output"]


def test_a_stream_says_where_it_has_stored_the_message(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        server = bench.serve()
        result = run(server.url, "--cluster", "fox", "--sink-set", "jetstream=true")
        assert result.returncode == 1
        assert result.stderr == f"ccagent: {server.url}: no stream takes the subject 'fox.sample'\n"
        server.add_stream("fox.>")
        result = run(server.url, "--cluster", "fox", "--sink-set", "jetstream=true")
        assert result.stdout.startswith("taken: stream 'all' has stored it")
        assert result.stdout.endswith("has stored it as number 1\n")
        result = run(server.url, "--cluster", "fox")
        assert "core NATS does not confirm subscribers" in result.stdout
