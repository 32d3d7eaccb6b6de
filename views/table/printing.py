"""The table of one sample for `AGENT --once` on a terminal. Nothing is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from ccagent.commands.once import time_limit
from ccagent.config.registry import agent_class
from ccagent.views.output import find_style, find_width, print_lines
from ccagent.views.table.records import format_records

if TYPE_CHECKING:
    from ccagent.agents.base import Agent
    from ccagent.config.configuration import Configuration
    from ccagent.records.message import Format

_EXTRAS = {"sample": ["job-cgroups"]}
"""Extras that an agent's table needs, by agent."""


def print_table(configuration: Configuration, name: str) -> bool:
    """Sample with an agent and print a table. Return whether the agent could read anything.

    Raise ProgramError after the time limit, RejectedError if standard output is closed.
    """
    node = configuration.settings.make_node()
    agent = _build(configuration, name)
    agent.is_only_sample = True
    limit = agent.settings.time_limit
    width, style = find_width(), find_style()
    try:
        with time_limit(limit.seconds, f"agent {name}: not finished after {limit}"):
            node.clock.sleep(agent.prepare(node))
            records = agent.sample(node)
            lines = format_records(records, _find_units(agent), width, style)
    finally:
        agent.close()
    print_lines(lines)
    return not agent.is_blind


def _build(configuration: Configuration, name: str) -> Agent[Any]:
    """Make the agent, in the format that its table needs."""
    found = agent_class(name)
    settings = configuration.agents[name]
    extras = [*dict.fromkeys([*settings.extras, *_EXTRAS.get(name, [])])]
    wanted: Format = "sonar" if "sonar" in found.formats else "line"
    return found(structs.replace(settings, extras=extras), frozenset({wanted}))


def _find_units(agent: Agent[Any]) -> dict[str, str]:
    """Return the units of an agent's metrics by output name; {} if the agent has no units."""
    outputs: dict[str, Any] = getattr(agent, "outputs", {})
    return {output.name: output.unit for output in outputs.values() if output is not None}
