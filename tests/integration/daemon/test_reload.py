"""A sink that is changed while messages wait for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.http_server import Server
from tests.support.running import Running, until

NOWHERE = "http://127.0.0.1:9/"


def configuration(url: str, directory: str, every: str = "1s") -> str:
    return f"""
        [outbox]
        directory = "{directory}"
        [agents.sample]
        every = "{every}"
        [sinks.tree]
        url = "dir:OUT"
        [sinks.backend]
        url = "{url}"
        """


def samples(server: Server) -> list[str]:
    bodies = [json.loads(request.body) for request in server.requests]
    return [body["data"]["attributes"]["time"] for body in bodies]


@pytest.mark.parametrize(
    ("before", "after", "every"),
    [("", "", "1s"), ("A", "A", "1s"), ("A", "A", "2s"), ("A", "B", "2s"), ("", "A", "1s")],
)
def test_what_waited_for_a_wrong_address_goes_to_the_right_one(
    before: str, after: str, every: str, daemon: Running, server: Server, tmp_path: Path
) -> None:
    """In memory, on disk, or moved between them; with the agent that goes on, or another."""
    old, new = (str(tmp_path / name) if name else "" for name in (before, after))
    daemon.start(configuration(NOWHERE, old))
    until(lambda: len(daemon.written()) >= 2)
    daemon.reload(configuration(f"http://{server.place}/", new, every))
    until(lambda: len(samples(server)) >= 3)
    assert daemon.stop() < 30
    until(lambda: len(samples(server)) >= len(daemon.written()))
    written = [envelope["data"]["attributes"]["time"] for envelope in daemon.written()]
    assert sorted(samples(server)) == sorted(written)
    assert "lost" not in daemon.said()
