"""What a site adds to the metrics, in the agent: beside readers, in forms and lists."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.agents.metrics.agent import MetricsAgent
from ccagent.agents.metrics.cluster_config import cluster_config
from ccagent.agents.metrics.commands import format_metrics
from ccagent.agents.metrics.settings import MetricsSettings
from ccagent.config.files import convert
from ccagent.errors import ConfigurationError
from ccagent.records.encoding import encode
from tests.support.running import CCAGENT
from tests.support.tree import TreeNode

SHELL = ["/bin/sh", "-c"]


def settings(**tables: object) -> MetricsSettings:
    table = {"readers": ["memory"], **tables}
    return convert(table, MetricsSettings, "agents.metrics", place="x.toml")


def agent_of(**tables: object) -> MetricsAgent:
    return MetricsAgent(settings(**tables), frozenset({"line"}))


class Site:
    """A node with a file of metrics and an agent; commands are waited for."""

    def __init__(self, root: Path) -> None:
        self.node = TreeNode(root)
        self.file = root / "site.lp"
        self.agent: MetricsAgent | None = None

    def start(self, **tables: object) -> MetricsAgent:
        self.agent = agent_of(**tables)
        self.agent.is_only_sample = True
        self.agent.prepare(self.node)
        return self.agent

    def write(self, text: str) -> None:
        self.file.write_text(text)
        now = self.node.clock.time()
        os.utime(self.file, (now, now))

    def sample(self, seconds: float = 60) -> list[str]:
        """Advance the clock and return the lines, without time, cluster and host."""
        assert self.agent is not None
        self.node.still.sleep(seconds)
        now = self.node.clock.time()
        if self.file.exists():
            os.utime(self.file, (now, now))
        bodies = [each.body for each in encode(self.agent.sample(self.node), "line", self.node)]
        lines = b"".join(bodies).decode().splitlines()
        assert all(line.endswith(f" {int(now)}") for line in lines)
        tags = (",cluster=test.org", ",hostname=c1-1")
        assert all(tag in line for tag in tags for line in lines)
        return [line.replace(tags[0], "").replace(tags[1], "").rpartition(" ")[0] for line in lines]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    if site.agent is not None:
        site.agent.close()


FILES = {"site": {"path": "/site.lp"}}


def test_values_of_commands_and_files_are_sent_with_those_of_readers(site: Site) -> None:
    site.write("room,type=socket,type-id=1 value=21.5 1234567890\n")
    site.start(commands={"queue": {"command": [*SHELL, "echo waiting value=7i"]}}, files=FILES)
    lines = site.sample()
    assert "room,type=socket,type-id=1 value=21.5" in lines
    assert "waiting,type=node value=7.0" in lines
    assert any(line.startswith("mem_used,type=node ") for line in lines)


def test_an_expression_has_base_units_and_is_sent_in_its_own(site: Site) -> None:
    site.write("reserved value=1000\n")
    site.start(
        files=FILES,
        expressions={
            "mem_share": {"expression": "mem_used / mem_available * 100", "unit": "percent"},
            "mem_free_of_all": {"expression": "mem_available - reserved", "unit": "B"},
        },
    )  # fmt: skip
    values = {line.split(",")[0]: float(line.partition("value=")[2]) for line in site.sample()}
    assert values["mem_share"] == pytest.approx(100 * 4000 / 12000)
    assert values["mem_free_of_all"] == pytest.approx((12000 * 1024 - 1000) * 1e-9)


def test_they_are_renamed_and_left_out_as_others(site: Site) -> None:
    site.write("a value=1\nb value=2\nc,type=socket,type-id=0 value=3\nd value=4\n")
    site.start(
        files=FILES,
        exclude=["b"],
        metrics={
            "a": {"name": "apples", "unit": "crates", "scale": 0.5, "tags": {"hall": "2"}},
            "c": {"of-node": True},
            "d": {"drop": True},
            "twice": {"name": "double"},
        },
        expressions={"twice": {"expression": "2 * b"}},
    )
    lines = [line for line in site.sample() if not line.startswith("mem_")]
    assert sorted(line for line in lines if re.match(r"[a-d]", line)) == [
        "apples,hall=2,type=node value=0.5",
        "c,type=node value=3.0",
        "double,type=node value=4.0",
    ]


def test_a_metric_that_comes_later_is_sent_from_then_on(site: Site) -> None:
    site.start(files=FILES)
    assert not [line for line in site.sample() if line.startswith("late")]
    site.write("late value=1\n")
    assert "late,type=node value=1.0" in site.sample()


def test_a_step_has_the_mean(site: Site) -> None:
    site.start(files=FILES, resolution="60s")
    agent = site.agent
    assert agent is not None
    agent.is_only_sample = False
    bodies = b""
    for value in (1, 2, 3, 0):
        site.node.still.sleep(30 if value < 3 else 31)
        site.write(f"a value={value}\n")
        messages = encode(agent.sample(site.node), "line", site.node)
        bodies += b"".join(message.body for message in messages)
    found = re.findall(rb"^a,\S+ value=(\S+)", bodies, re.MULTILINE)
    assert [float(value) for value in found] == [1.0, 2.5]


def test_what_is_wrong_is_in_the_log_and_nothing_else_suffers(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.write("a value=1\nmem_used value=5\nb,hostname=c1-2 value=3\n")
    site.start(commands={"queue": {"command": [*SHELL, "exit 1"]}}, files=FILES)
    lines = site.sample()
    assert "a,type=node value=1.0" in lines
    assert len([line for line in lines if line.startswith("mem_used")]) == 1
    assert "agent metrics: file site: mem_used: a metric of ccagent has this name" in caplog.text
    assert "agent metrics: file site: b: hostname 'c1-2' is not this one" in caplog.text
    assert "agent metrics: command queue: /bin/sh: exit status 1" in caplog.text


def test_all_are_listed(site: Site) -> None:
    site.write("room value=21.5\n")
    agent = site.start(
        commands={"queue": {"command": [*SHELL, "echo waiting value=7"]}},
        files=FILES,
        exclude=["room"],
        expressions={
            "share": {"expression": "mem_used * waiting", "unit": "x"},
            "more": {"expression": "share + 1"},
            "never": {"expression": "wolves / mem_used"},
        },
    )
    rows = {
        line.split()[0]: " ".join(line.split())
        for line in format_metrics(agent, site.node).split("\n")
    }
    assert rows["waiting"] == "waiting node yes (command queue)"
    assert rows["room"] == "room node yes, not sent (file site)"
    assert rows["share"] == "share x node yes (expression mem_used * waiting)"
    assert rows["more"] == "more node yes (expression share + 1)"
    assert rows["never"] == "never node no: there is no wolves (expression wolves / mem_used)"


def test_they_are_part_of_the_configuration_of_the_cluster(site: Site) -> None:
    site.write("room,type=socket,type-id=0 value=21.5\n")
    agent = site.start(
        files=FILES, expressions={"warm": {"expression": "room + 1", "unit": "degC"}}
    )
    metrics = {each["name"]: each for each in cluster_config(agent, site.node)["metricConfig"]}
    assert metrics["room"]["scope"] == "socket"
    assert metrics["warm"]["unit"] == {"base": "°C"}


def metric_with(**keys: object) -> dict[str, object]:
    return {"metrics": {"mem_used": keys}}


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ({"commands": {"x": {"command": ["ls"]}}}, "commands.x.command: 'ls' is no absolute path"),
        ({"commands": {"x": {"command": ["/bin/ls", "a\0"]}}}, "commands.x.command: with a NUL"),
        ({"commands": {"x": {"command": []}}}, "agents.metrics.commands.x.command: "),
        ({"commands": {"x": {}}}, "agents.metrics.commands.x.command: missing"),
        ({"commands": {"x": {"command": ["/x"], "evry": "1s"}}}, "commands.x.evry: unknown key"),
        ({"commands": {"x": {"command": ["/x"], "every": 5}}}, "5 is not a duration"),
        ({"files": {"x": {"path": "x.lp"}}}, "files.x.path: 'x.lp' is no absolute path"),
        ({"files": {"x": {"path": "/x", "age": "5m"}}}, "files.x.age: unknown key"),
        ({"expressions": {"a-b": {"expression": "1"}}}, "expressions.a-b: letters, digits"),
        ({"expressions": {"x": {"expression": 5}}}, "expected a string"),
        (
            {"expressions": {"x": {"expression": "mem_usd"}}},
            "agents.metrics.expressions.x: expression: column 1: 'mem_usd' is no metric",
        ),
        (
            {"expressions": {"mem_used": {"expression": "1"}}},
            "agents.metrics.expressions.mem_used: there is a metric of this name",
        ),
        ({"include": ["waiting"]}, "agents.metrics.include: 'waiting' is no metric"),
        (metric_with(tags={"room": ""}), "metrics.mem_used: tag 'room': '' is empty"),
        (metric_with(tags={"": "a"}), "metrics.mem_used: tag '': '' is empty"),
        (metric_with(tags={"room": "a\nb"}), r"metrics.mem_used: tag 'room': 'a\nb' is empty, or"),
        (metric_with(tags={"room": "a\\"}), "or a final backslash"),
        (metric_with(name="a b"), "metrics.mem_used: name 'a b': letters, digits"),
        (metric_with(scale=float("nan")), "metrics.mem_used: scale nan is not a finite number"),
        (metric_with(scale=float("inf")), "metrics.mem_used: scale inf is not a finite number"),
    ],
)
def test_a_bad_table_is_said(tables: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        agent_of(**tables)
    assert reason in str(caught.value)


def test_names_that_only_a_file_can_tell_may_be_configured() -> None:
    agent = agent_of(files=FILES, include=["waiting"], metrics={"waiting": {"name": "queue"}})
    agent.close()


@pytest.mark.slow
def test_the_command_waits_for_commands(tmp_path: Path) -> None:
    file = tmp_path / "ccagent.toml"
    file.write_text(
        'cluster = "fox"\nhostname = "c1-1"\n[agents.metrics]\nreaders = ["memory"]\n'
        '[agents.metrics.commands.slow]\n'
        'command = ["/bin/sh", "-c", "sleep 1.5; echo slow value=1"]\n'
        '[sinks.out]\nurl = "stdout:"\nformat = "line"\n'
    )  # fmt: skip
    command = [*CCAGENT, "metrics", "--once", "--config", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "slow,cluster=fox,hostname=c1-1,type=node value=1.0 " in result.stdout
