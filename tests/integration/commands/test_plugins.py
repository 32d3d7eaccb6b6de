"""Agents and transports of others, installed beside ccagent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = '''
from ccagent.agents.base import Agent, AgentSettings
from ccagent.records.points import Point
from ccagent.transports.base import Transport

class Settings(AgentSettings, frozen=True, kw_only=True):
    answer: int = 42

class AnswerAgent(Agent[Settings]):
    """Knows the answer."""
    name = "answer"
    formats = frozenset({"line"})
    Settings = Settings
    def sample(self, node):
        yield Point("answer", {"hostname": node.hostname}, self.settings.answer, 1.0)

class ShoutTransport(Transport):
    """Prints in capitals."""
    def send(self, messages):
        for message in messages:
            print(message.body.decode().upper(), end="")
'''

ENTRY_POINTS = """
[ccagent.agents]
answer = others:AnswerAgent
broken = others:NoSuchAgent
[ccagent.transports]
shout = others:ShoutTransport
"""


@pytest.fixture
def others(tmp_path: Path) -> dict[str, str]:
    """An environment in which a distribution with an agent and a transport is installed."""
    (tmp_path / "others.py").write_text(CODE)
    metadata = tmp_path / "others-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return os.environ | {"PYTHONPATH": str(tmp_path)}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ccagent", *arguments],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip


def test_an_installed_agent_is_a_command_and_takes_settings(others: dict[str, str]) -> None:
    result = run(
        others, "answer", "--once", "--format", "line", "--sink", "shout:", "--set", "answer=7"
    )
    assert result.stdout.startswith("ANSWER,HOSTNAME=")
    assert result.stdout.endswith(" VALUE=7I 1\n")


def test_they_are_listed(others: dict[str, str]) -> None:
    listed = run(others, "sinks").stdout
    assert "shout:     Prints in capitals." in listed


def test_one_that_cant_be_loaded_is_a_clear_error(others: dict[str, str]) -> None:
    result = run(others, "broken", "--once")
    assert result.returncode == 2
    assert "others:NoSuchAgent can't be loaded" in result.stderr


def test_formats_that_an_agent_has_not_are_refused(others: dict[str, str]) -> None:
    result = run(others, "answer", "--once", "--format", "sonar")
    assert result.returncode == 2
    assert "needs format 'sonar', but answer has only line" in result.stderr


def test_an_agent_with_one_format_is_asked_for_that(others: dict[str, str]) -> None:
    assert run(others, "answer", "--once").stdout.startswith("answer,hostname=")
