"""What the agents need: those of the configuration, and the others with their defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.config.registry import AGENTS, agent_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.needs import Need
    from ccagent.config.configuration import Configuration
    from ccagent.machine.node import Node

EVERYWHERE = ("sample", "sysinfo", "metrics")
"""Agents that any node can run: they count where none is configured."""


class Demand(NamedTuple):
    """What an agent needs; what isn't configured can't be stopped by its lack."""

    agent: str
    is_configured: bool
    need: Need


class Site(NamedTuple):
    """What checks look at. `delivers`: sinks are tried with a message."""

    node: Node
    configuration: Configuration
    demands: list[Demand]
    delivers: bool = False


def counted(configuration: Configuration) -> list[str]:
    """Name the agents whose work decides over the exit status."""
    return list(configuration.agents or EVERYWHERE)


def demands_of(configuration: Configuration) -> list[Demand]:
    """Ask the agents what they need, the configured ones first."""
    return list(_demands(configuration))


def _demands(configuration: Configuration) -> Iterator[Demand]:
    configured = counted(configuration)
    for name in dict.fromkeys([*configured, *AGENTS]):
        kind = agent_class(name)
        if name in configuration.agents:
            settings, formats = configuration.agents[name], configuration.formats_of(name)
        else:
            settings, formats = kind.Settings(), kind.formats
        agent = kind(settings, formats)
        try:
            for need in agent.needs():
                yield Demand(name, name in configured, need)
        finally:
            agent.close()
