"""The log line at the start: version, agents and sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent import __version__
from ccagent.commands.options import public_url
from ccagent.commit import commit

if TYPE_CHECKING:
    from ccagent.agents.base import AgentSettings
    from ccagent.config.configuration import Configuration


def describe_run(configuration: Configuration) -> str:
    """Return version, file, agents with their cadence, and sinks without secrets."""
    found = commit()
    version = f"ccagent {__version__}" + (f" ({found})" if found else "")
    agents: list[str] = []
    for name, settings in configuration.agents.items():
        chosen = configuration.sinks_of(name)
        goal = "" if chosen == [*configuration.sinks] else f" to {', '.join(chosen)}"
        agents.append(f"{name} {_cadence(settings)}{goal}")
    sinks = [f"{name} {public_url(sink.url)}" for name, sink in configuration.sinks.items()]
    return (
        f"{version} with {configuration.place}; agents: {'; '.join(agents)}; "
        f"sinks: {'; '.join(sinks)}"
    )


def _cadence(settings: AgentSettings) -> str:
    if settings.every is None:
        return "at the start"
    return f"every {settings.every}" + (" and at the start" if settings.on_startup else "")
