"""Checks of the configured agents, and of all other agents with their defaults."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.agents.base import agent_class
from ccagent.machine.checks import Check, CheckResult
from ccagent.registry import AGENTS

if TYPE_CHECKING:
    from collections.abc import Generator

    from ccagent.agents.base import Agent
    from ccagent.config.configuration import Configuration
    from ccagent.machine.node import Node

EVERYWHERE = ("sample", "sysinfo", "metrics")
"""Agents that run on any node. They count if no agent is configured."""


class AgentCheck(NamedTuple):
    """A check and its agent. Only a configured agent can be stopped by a check."""

    agent: str
    is_configured: bool
    check: Check


class Site(NamedTuple):
    """The machine and the configuration to examine. delivers: probe sinks with a message."""

    node: Node
    configuration: Configuration
    checks: list[AgentCheck]
    delivers: bool = False


def list_agents(configuration: Configuration) -> list[str]:
    """Return the agents that count for the exit status."""
    return list(configuration.agents or EVERYWHERE)


@contextmanager
def open_checks(configuration: Configuration, node: Node) -> Generator[list[AgentCheck]]:
    """Yield the checks of all agents, configured ones first. Close the agents at the end."""
    configured = list_agents(configuration)
    checks: list[AgentCheck] = []
    names = dict.fromkeys([*configured, *AGENTS])
    agents = {name: _make_agent(configuration, name) for name in names}
    try:
        for name, agent in agents.items():
            try:
                found = list(agent.checks(node))
            except Exception as error:  # noqa: BLE001 - agents of third parties come here
                found = [_make_failed(name, error)]
            checks += [AgentCheck(name, name in configured, check) for check in found]
        yield checks
    finally:
        for agent in agents.values():
            agent.close()


def _make_agent(configuration: Configuration, name: str) -> Agent[Any]:
    kind = agent_class(name)
    if name in configuration.agents:
        return kind(configuration.agents[name], configuration.formats_of(name))
    return kind(kind.Settings(), kind.formats)


def _make_failed(name: str, error: Exception) -> Check:
    result = CheckResult(
        "problem", f"{type(error).__name__}: {error}", "report it to the agent's authors"
    )
    return Check(
        "programs", f"checks of agent {name}", lambda: result, "the findings of these checks"
    )
