"""Readers that run programs of the site, with real programs."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from ccagent.agents.metrics.agent import MetricsAgent
from ccagent.agents.metrics.readers.ipmi import IpmiReader, IpmiSettings
from ccagent.agents.metrics.settings import MetricsSettings
from ccagent.config.duration import Duration
from ccagent.config.files import convert
from ccagent.machine.node import Node
from tests.support.tree import TreeNode


class Tool:
    """A program that the test writes."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "tool"
        self.pid_file = directory / "pid"
        self.node: Node = TreeNode(directory / "root")

    def write(self, script: str) -> None:
        self.path.write_text(f"#!/bin/sh\necho $$ > {self.pid_file}\n{script}\n")
        self.path.chmod(0o700)

    def reader(self, time_limit: str = "30s") -> IpmiReader:
        reader = IpmiReader(
            IpmiSettings(command=(str(self.path),), time_limit=Duration(time_limit))
        )
        reader.is_patient = True
        return reader

    def is_running(self) -> bool:
        """Return whether it runs; one that was killed at once has left no number."""
        if not self.pid_file.exists() or not self.pid_file.read_text():
            return False
        pid = int(self.pid_file.read_text())
        return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    return Tool(tmp_path)


def test_what_it_prints_is_parsed(tool: Tool) -> None:
    tool.write("echo 'CPU1 Temp,42,degrees C,ok'")
    reader = tool.reader()
    (gauge,) = reader.read(tool.node)
    assert (gauge.metric, gauge.value) == ("ipmi_temp", 42)
    reader.close()


def test_one_that_takes_too_long_is_killed(tool: Tool) -> None:
    tool.write("exec sleep 60")
    reader = tool.reader("200ms")
    assert list(reader.read(tool.node)) == []
    assert reader.errors == [f"{tool.path}: not finished after 0.2 s"]
    assert not tool.is_running()
    reader.close()


def test_one_that_fails_is_an_error_with_its_reason(tool: Tool) -> None:
    tool.write("echo 'Could not open device' >&2; exit 1")
    reader = tool.reader()
    assert list(reader.read(tool.node)) == []
    assert reader.errors == [f"{tool.path}: exit status 1: Could not open device"]
    reader.close()


def test_one_that_prints_without_end_is_killed(tool: Tool) -> None:
    tool.write("exec yes 'CPU1 Temp,42,degrees C,ok'")
    reader = tool.reader()
    assert list(reader.read(tool.node)) == []
    assert reader.errors == [f"{tool.path}: printed more than 4194304 bytes"]
    assert not tool.is_running()
    reader.close()


def test_closing_the_reader_kills_it(tool: Tool) -> None:
    tool.write("exec sleep 60")
    reader = tool.reader()
    reader.is_patient = False
    while not tool.pid_file.exists() or not tool.pid_file.read_text():
        assert list(reader.read(tool.node)) == []
    reader.close()
    assert not tool.is_running()


@pytest.mark.slow
def test_one_shot_waits_for_it(tool: Tool) -> None:
    tool.write("sleep 0.3; echo 'Pwr,392,Watts,ok'")
    agent = MetricsAgent(
        convert(
            {
                "readers": ["ipmi"], "include": ["ipmi_power"],
                "ipmi": {"command": [str(tool.path)]},
            },
            MetricsSettings,
            "agents.metrics",
            place="test",
        ),
        frozenset({"line"}),
    )  # fmt: skip
    agent.is_only_sample = True
    agent.prepare(tool.node)
    (point,) = agent.sample(tool.node)
    assert (point.name, point.value) == ("ipmi_power", 392)
    agent.close()
