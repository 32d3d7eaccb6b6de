"""One-shot commands: what is neither sent nor stored is lost, and they say so."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ccagent.agents.base import Agent, AgentSettings
from ccagent.commands import once
from ccagent.config.configuration import check
from ccagent.machine.node import Node
from ccagent.queue.queue import make_directory_name
from ccagent.queue.segment import WAITING, find_owner
from ccagent.queue.segment_directory import read_files
from ccagent.records.json_encoding import JsonArray
from tests.support.http_server import Handler, Server, say

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def sample(directory: Path, port: int) -> subprocess.CompletedProcess[str]:
    """Run `ccagent sample --once` with an outbox and a sink."""
    file = directory.parent / "ccagent.toml"
    file.write_text(
        f'cluster = "x"\n[outbox]\ndirectory = "{directory}"\n'
        f'[sinks.backend]\nurl = "http://127.0.0.1:{port}"\n'
    )
    command = [sys.executable, "-m", "ccagent", "sample", "--once", "--config", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def stored(directory: Path) -> int:
    files = read_files(str(directory / make_directory_name("backend")), find_owner("backend"))
    return sum(each.state == WAITING for content in files.values() for each in content.messages)


def make_file(place: Path) -> None:
    place.write_text("")


def make_file_instead_of_the_directory(place: Path) -> None:
    place.mkdir()
    (place / make_directory_name("backend")).touch()


def make_open_directory(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


UNUSABLE = [make_file, make_file_instead_of_the_directory, make_open_directory]


def test_a_sample_that_is_stored_goes_with_the_next_one(
    tmp_path: Path, closed_port: int, server: Server
) -> None:
    done = sample(tmp_path / "outbox", closed_port)
    assert done.returncode == 0
    assert "refused" in done.stderr
    assert stored(tmp_path / "outbox") == 1
    assert sample(tmp_path / "outbox", server.server_port).returncode == 0
    assert len(server.requests) == 2
    assert stored(tmp_path / "outbox") == 0


@pytest.mark.parametrize("spoil", UNUSABLE)
def test_a_sample_that_is_neither_sent_nor_stored_is_lost(
    tmp_path: Path, closed_port: int, spoil: object
) -> None:
    assert callable(spoil)
    spoil(tmp_path / "outbox")
    done = sample(tmp_path / "outbox", closed_port)
    assert done.returncode == 1
    assert "sink backend: 1 messages are lost: neither sent (" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("spoil", UNUSABLE)
def test_a_sample_that_is_sent_needs_no_outbox(
    tmp_path: Path, server: Server, spoil: object
) -> None:
    assert callable(spoil)
    spoil(tmp_path / "outbox")
    assert sample(tmp_path / "outbox", server.server_port).returncode == 0
    assert len(server.requests) == 1


@ROOT
@pytest.mark.parametrize("options", ["size=4k,mode=700", "ro,mode=700"])
def test_a_full_or_read_only_disk_is_noticed(
    tmp_path: Path, closed_port: int, options: str
) -> None:
    place = tmp_path / "outbox"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    try:
        if options.startswith("size"):
            (place / "fill").write_bytes(bytes(4096))  # a sample of few processes is small
        done = sample(place, closed_port)
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert done.returncode == 1
    assert "1 messages are lost" in done.stderr
    assert "Traceback" not in done.stderr


class Remembering(Agent[AgentSettings]):
    """Notes when its records are delivered."""

    name = "sample"
    formats = frozenset({"sonar"})
    remembered = False

    def sample(self, node: Node) -> Iterable[JsonArray]:
        del node
        return [JsonArray("sample", [{"a": 1}])]

    def commit_sample(self) -> None:
        self.remembered = True


@pytest.mark.parametrize("is_usable", [True, False])
def test_an_agent_remembers_only_what_is_sent_or_stored(
    tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch, *, is_usable: bool
) -> None:
    if not is_usable:
        (tmp_path / "outbox").write_text("")
    configuration = check(
        {
            "outbox": {"directory": str(tmp_path / "outbox")},
            "agents": {"sample": {}},
            "sinks": {"backend": {"url": f"http://127.0.0.1:{closed_port}"}},
        },
        "test",
    )
    agent = Remembering(AgentSettings(), frozenset({"sonar"}))

    def build(*_: object) -> Remembering:
        return agent

    monkeypatch.setattr(once, "build_agent", build)
    assert once.run_once(configuration, "sample") is is_usable
    assert agent.remembered is is_usable


def test_a_sink_that_waits_does_not_hold_up_the_next_one(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_next_served = threading.Event()

    def wait(handler: Handler) -> None:
        assert is_next_served.wait(60)
        say(204)(handler)

    def note(handler: Handler) -> None:
        is_next_served.set()
        say(204)(handler)

    other = Server()
    server.script.append(wait)
    other.script.append(note)
    sinks = {"backend": server, "second": other}
    configuration = check(
        {
            "outbox": {"directory": str(tmp_path / "outbox")},
            "agents": {"sample": {}},
            "sinks": {
                name: {"url": f"http://{each.place}", "time-limit": "60s"}
                for name, each in sinks.items()
            },
        },
        "test",
    )
    agent = Remembering(AgentSettings(), frozenset({"sonar"}))

    def build(*_: object) -> Remembering:
        return agent

    monkeypatch.setattr(once, "build_agent", build)
    try:
        assert once.run_once(configuration, "sample")
    finally:
        other.stop()
    assert stored(tmp_path / "outbox") == 0
