"""Findings of the doctor, and the checks of all agents that make them.

Checks run in parallel, each in a thread that is abandoned if it hangs.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from ccagent.agents.base import Agent, agent_class
from ccagent.errors import CcagentError, ProgramError
from ccagent.machine.background import BackgroundCall
from ccagent.machine.checks import Check, CheckResult, State
from ccagent.registry import AGENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from ccagent.config.configuration import Configuration
    from ccagent.machine.node import Node


class Finding(msgspec.Struct, frozen=True):
    """A finding, with the fields of `--json`.

    area: group of subjects. subject: name of the checked thing, unique in the list. state, found,
    fix: as in CheckResult. impact: losses, each with its agent. stops: configured agents and sinks
    that cannot work, such as `agent jobs`, `sink backend`. not_configured: losses of agents that
    are not configured.
    """

    area: str
    subject: str
    state: State
    found: str
    fix: str = ""
    impact: list[str] = []
    stops: list[str] = []
    not_configured: list[str] = []

    @property
    def is_for_others(self) -> bool:
        """True if only agents that are not configured need this."""
        return bool(self.not_configured) and not self.impact and not self.stops


def make_finding(checks: Sequence[AgentCheck], result: CheckResult) -> Finding:
    """Return the finding for a result, with the losses of the agents of these checks."""
    first = checks[0].check
    impact, stops, others = list[str](), list[str](), list[str]()
    for agent, is_configured, check in checks if result.state != "good" else ():
        if not check.impact:
            continue
        (impact if is_configured else others).append(f"{agent}: {check.impact}")
        if is_configured and check.is_vital:
            stops.append(f"agent {agent}")
    return Finding(
        first.area,
        first.subject,
        *result,
        impact=list(dict.fromkeys(impact)),
        stops=list(dict.fromkeys(stops)),
        not_configured=list(dict.fromkeys(others)),
    )


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
    found, fix = f"{type(error).__name__}: {error}", "report it to the agent's authors"
    result, impact = CheckResult("problem", found, fix), "the findings of these checks"
    return Check("programs", f"checks of agent {name}", lambda: result, impact)


T = TypeVar("T")


def run_all(tasks: Sequence[Callable[[], T]], seconds: float) -> list[T | CcagentError]:
    """Return the result or exception of each task; ProgramError for a hanging task."""
    deadline = time.monotonic() + seconds
    calls = [BackgroundCall(task, "check") for task in tasks]
    outcomes: list[T | CcagentError] = []
    for call in calls:
        try:
            if not call.wait(deadline - time.monotonic()):
                raise ProgramError(f"not finished after {seconds:g} s")
            outcomes.append(call.checked_result())
        except CcagentError as error:
            outcomes.append(error)
    return outcomes
