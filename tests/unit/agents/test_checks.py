"""Checks that agents ask for with their settings, and agents of third parties among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from ccagent.agents.base import Agent, AgentSettings
from ccagent.config.configuration import check
from ccagent.doctor import finding as agent_checks
from ccagent.doctor.examination import examine
from ccagent.doctor.finding import EVERYWHERE, AgentCheck, Finding, Site, open_checks
from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.node import Node
from ccagent.records.message import Format, Record
from ccagent.registry import AGENTS, GPU_VENDORS

NODE = Node()


def list_checks(**agents: dict[str, Any]) -> list[AgentCheck]:
    sinks = {"a": {"url": "stdout:"}, "b": {"url": "stdout:", "format": "line"}}
    for agent in agents.values():
        agent.setdefault("sinks", ["a"])
    with open_checks(check({"sinks": sinks, "agents": agents}, "test"), NODE) as checks:
        return checks


def needs(agent: str, **settings: Any) -> dict[str, bool]:
    """Return the subjects that an agent needs, and whether they are vital."""
    return {
        each.check.subject: each.check.is_vital
        for each in list_checks(**{agent: settings})
        if each.agent == agent and each.check.impact
    }


def test_each_check_makes_one_finding() -> None:
    configuration = check({"sinks": {"a": {"url": "stdout:"}}}, "test")
    with open_checks(configuration, NODE) as checks:
        subjects = [each.subject for each in examine(Site(NODE, configuration, checks))]
    assert len(subjects) == len(set(subjects))
    # Servers are asked only for agents that are configured.
    due = {each.check.subject for each in checks if each.is_configured or not each.check.is_query}
    assert due <= set(subjects)
    assert {f"{vendor} cards" for vendor in GPU_VENDORS} <= due


class PluginSettings(AgentSettings, frozen=True, kw_only=True):
    """The keys of an agent of a third party."""


class PluginAgent(Agent[PluginSettings]):
    """An agent of a third party, whose checks use what it holds open."""

    name = "sample"
    formats: ClassVar[frozenset[Format]] = frozenset({"line"})
    Settings = PluginSettings
    is_broken = False

    def __init__(self, settings: PluginSettings, wanted: frozenset[Format]) -> None:
        super().__init__(settings, wanted)
        self.is_open = True

    def checks(self, node: Node) -> Iterator[Check]:
        if self.is_broken:
            raise ZeroDivisionError("by nothing")
        yield Check("of a plugin", "BMC", self._find, "power", is_vital=True)

    def sample(self, node: Node) -> Iterator[Record]:
        yield from ()

    def close(self) -> None:
        self.is_open = False

    def _find(self) -> CheckResult:
        assert self.is_open
        return CheckResult("missing", "no ipmitool", "install it")


def examine_plugin(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Return the findings for a configuration of the plugin alone."""

    def find_class(_: str) -> type[PluginAgent]:
        return PluginAgent

    monkeypatch.setattr(agent_checks, "agent_class", find_class)
    monkeypatch.setattr(agent_checks, "AGENTS", {})
    table = {"sinks": {"a": {"url": "stdout:"}}, "agents": {"sample": {"every": "1m"}}}
    configuration = check(table, "test")
    with open_checks(configuration, NODE) as checks:
        return examine(Site(NODE, configuration, checks), {})


def test_a_plugin_has_findings_like_any_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert examine_plugin(monkeypatch) == [
        Finding(
            "of a plugin", "BMC", "missing", "no ipmitool", "install it",
            ["sample: power"], ["agent sample"],
        )
    ]  # fmt: skip


def test_a_plugin_that_breaks_is_a_problem_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PluginAgent, "is_broken", True)
    (finding,) = examine_plugin(monkeypatch)
    assert (finding.state, finding.found) == ("problem", "ZeroDivisionError: by nothing")
    assert finding.subject == "checks of agent sample"


def test_without_a_configuration_those_count_that_any_node_can_run() -> None:
    asked = {each.agent: each.is_configured for each in list_checks()}
    assert {name for name, is_configured in asked.items() if is_configured} == set(EVERYWHERE)
    assert set(asked) == set(AGENTS) - {"log"}


def test_with_one_the_others_do_not_count() -> None:
    asked = {each.agent: each.is_configured for each in list_checks(cluster={})}
    assert [name for name, is_configured in asked.items() if is_configured] == ["cluster"]


def test_jobs_are_nothing_without_accounting() -> None:
    assert needs("jobs", sacct="/opt/slurm/bin/sacct") == {
        "/opt/slurm/bin/sacct": True,
        "accounting of Slurm": True,
        "squeue": False,
    }


def test_events_of_nodes_need_squeue() -> None:
    assert needs("cluster") == {"sinfo": True, "controller of Slurm": True}
    assert needs("cluster", sinks=["b"])["squeue"]


@pytest.mark.parametrize(
    ("settings", "subject", "vital"),
    [
        ({}, "targets with jobstats", True),
        ({"statistics": ["stats"]}, "targets with jobstats", False),
        ({"jobstats": False, "statistics": ["llite"]}, "mounted Lustre", False),
        ({"lctl": "/opt/lctl"}, "/opt/lctl", False),
    ],
)
def test_lustre(settings: dict[str, Any], subject: str, vital: bool) -> None:
    assert needs("lustre", **settings)[subject] == vital


def test_metrics_need_what_their_readers_need() -> None:
    found = needs("metrics", sinks=["b"])
    assert {"RAPL", "InfiniBand", "hardware counters", "control groups of jobs"} <= set(found)
    assert not any(found.values())
    assert needs("metrics", sinks=["b"], readers=["power"]) == {"RAPL": True}
    assert needs("metrics", sinks=["b"], readers=["network"]) == {}
    excluded = {"readers": ["power", "cpu"], "exclude": ["cpu_power", "mem_power"]}
    assert "RAPL" not in needs("metrics", sinks=["b"], **excluded)


def test_samples_need_what_they_report() -> None:
    assert needs("sample")["/proc"]
    assert "control groups of jobs" not in needs("sample")
    assert "control groups of jobs" in needs("sample", extras=["job-cgroups"])
    assert "scontrol" in needs("sample", sinks=["b"])
    assert "nvidia cards" not in needs("sample", **{"gpu-vendors": ["amd"]})


def test_sysinfo_needs_the_programs_of_its_settings() -> None:
    software = [{"key": "mpi", "command": "mpirun --version"}]
    settings = {"topo-svg-command": "/opt/lstopo --of svg", "software": software}
    assert "/opt/lstopo" in needs("sysinfo", **settings)
    assert "mpirun" not in needs("sysinfo", **settings)
    assert "mpirun" in needs("sysinfo", **settings, extras=["software"])
