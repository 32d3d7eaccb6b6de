"""What agents say that they need, with their settings."""

from __future__ import annotations

from typing import Any

import pytest

from ccagent.config.configuration import check
from ccagent.config.registry import AGENTS, GPU_VENDORS
from ccagent.doctor.demands import EVERYWHERE, Demand, Site, demands_of
from ccagent.doctor.examination import examine
from ccagent.doctor.gpus import subject_of
from ccagent.machine.node import Node


def demands(**agents: dict[str, Any]) -> list[Demand]:
    sinks = {"a": {"url": "stdout:"}, "b": {"url": "stdout:", "format": "line"}}
    for agent in agents.values():
        agent.setdefault("sinks", ["a"])
    return demands_of(check({"sinks": sinks, "agents": agents}, "test"))


def needs(agent: str, **settings: Any) -> dict[str, bool]:
    """Subjects that an agent needs, and whether they are vital."""
    return {
        demand.need.subject: demand.need.is_vital
        for demand in demands(**{agent: settings})
        if demand.agent == agent
    }


def test_each_need_names_something_that_is_looked_at() -> None:
    configuration = check({"sinks": {"a": {"url": "stdout:"}}}, "test")
    asked = demands_of(configuration)
    looked = {finding.subject for finding in examine(Site(Node(), configuration, asked))}
    for _, is_configured, need in asked:
        # Questions are put for agents that are configured.
        if is_configured or not need.question:
            assert need.subject in looked
    assert {subject_of(vendor) for vendor in GPU_VENDORS} <= looked


def test_without_a_configuration_those_count_that_any_node_can_run() -> None:
    asked = {demand.agent: demand.is_configured for demand in demands()}
    assert {name for name, is_configured in asked.items() if is_configured} == set(EVERYWHERE)
    assert set(asked) == set(AGENTS) - {"log"}


def test_with_one_the_others_do_not_count() -> None:
    asked = {demand.agent: demand.is_configured for demand in demands(cluster={})}
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


def test_samples_need_what_they_tell() -> None:
    assert needs("sample")["/proc"]
    assert "control groups of jobs" not in needs("sample")
    assert "control groups of jobs" in needs("sample", extras=["job-cgroups"])
    assert "scontrol" in needs("sample", sinks=["b"])
    assert "nvidia cards" not in needs("sample", **{"gpu-vendors": ["amd"]})


def test_sysinfo_needs_the_programs_that_it_is_told_to_run() -> None:
    software = [{"key": "mpi", "command": "mpirun --version"}]
    settings = {"topo-svg-command": "/opt/lstopo --of svg", "software": software}
    assert "/opt/lstopo" in needs("sysinfo", **settings)
    assert "mpirun" not in needs("sysinfo", **settings)
    assert "mpirun" in needs("sysinfo", **settings, extras=["software"])
