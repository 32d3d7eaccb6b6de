"""Warnings of `ccagent config check`: valid keys that prevent a start, lose records, or are unsafe.

A directory is unsafe if other users can create files in it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ccagent.registry import load_transport
from ccagent.service.private_directories import check_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.config.configuration import Configuration


_KINDS: dict[str, dict[str, str]] = {
    "sample": {"sonar": "sample", "line": "metrics"},
    "sysinfo": {"sonar": "sysinfo"},
    "jobs": {"sonar": "job", "line": "events.job"},
    "cluster": {"sonar": "cluster", "line": "events.slurm"},
    "metrics": {"line": "metrics"},
    "log": {"line": "log.ccagent"},
}
"""Kind of the messages of an agent, by format."""


def find_warnings(configuration: Configuration) -> Iterator[str]:
    """Yield the warnings of a checked configuration, a sentence with keys, reason and fix each."""
    for name in configuration.agents:
        yield from _find_forgotten(configuration, name)
        yield from _find_not_taken(configuration, name)
    yield from _find_unused_sinks(configuration)
    for name in configuration.agents_without_cadence:
        yield f"agents.{name}.every: missing: `ccagent run` does not start, `--once` works"


def _find_forgotten(configuration: Configuration, agent: str) -> Iterator[str]:
    """Yield a warning for a state file that outlives messages in memory."""
    outbox = configuration.outbox
    if not getattr(configuration.agents[agent], "state_file", ""):
        return
    if outbox.directory and not outbox.memory:
        return
    key = "outbox.memory" if outbox.directory else "outbox.directory"
    sinks = [
        sink
        for sink in configuration.sinks_of(agent)
        if load_transport(configuration.sinks[sink].url).is_network
    ]
    if sinks:
        cause = "is true" if outbox.directory else "is empty"
        remedy = "outbox.memory = false" if outbox.directory else "outbox.directory"
        yield (
            f"agents.{agent}.state-file: {key} {cause}, so messages for "
            f"sink{'s' if len(sinks) > 1 else ''} {', '.join(sinks)} wait in "
            f"memory; one that is dropped there is lost, and state-file holds it as sent: "
            f"set {remedy}"
        )


def _find_not_taken(configuration: Configuration, agent: str) -> Iterator[str]:
    """Yield warnings for sinks whose receiver ignores or misinterprets an agent's messages."""
    for name in configuration.sinks_of(agent):
        sink = configuration.sinks[name]
        receiver = sink.preset
        kind = _KINDS.get(agent, {}).get(sink.format)
        if receiver is not None and kind is not None and not receiver.takes(kind):
            yield (
                f"agents.{agent}.sinks, sinks.{name}.receiver: {sink.receiver} takes no {kind}, so "
                f"nothing of this agent is sent there: name other sinks in agents.{agent}.sinks"
            )
        # Without the key, each sink has the records for its receiver.
        preset = getattr(configuration.agents[agent], "preset", "") if agent == "sample" else ""
        if preset and sink.format == "sonar" and sink.receiver != preset:
            yield (
                f"agents.{agent}.preset, sinks.{name}.receiver: {preset!r} changes the records of "
                f"this sink too: remove agents.{agent}.preset, and each sink has the records of "
                "its receiver"
            )


def _find_unused_sinks(configuration: Configuration) -> Iterator[str]:
    """Yield warnings for sinks without an agent."""
    agents = configuration.agents
    used = {sink for agent in agents for sink in configuration.sinks_of(agent)}
    for name, sink in configuration.sinks.items():
        if agents and name not in used:
            yield (
                f"sinks.{name}.format: no agent sends there: name the sink in an agent's sinks, or "
                f"choose a format that an agent has; it is {sink.format!r}"
            )


def unsafe_places(configuration: Configuration) -> list[tuple[str, str]]:
    """Return the keys of directories that are not safe from other users, each with the reason."""
    found = [(key, check_directory(directory)) for key, directory in _places(configuration)]
    return [(key, reason) for key, reason in found if reason]


def _places(configuration: Configuration) -> Iterator[tuple[str, str]]:
    settings = configuration.settings
    if settings.lock_directory:
        yield "lock-directory", settings.lock_directory
    if settings.status_socket:
        yield "status-socket", os.path.dirname(settings.status_socket)
    if configuration.outbox.directory:
        yield "outbox.directory", configuration.outbox.directory
    for name, sink in configuration.sinks.items():
        scheme, _, path = sink.url.partition(":")
        if scheme == "dir":
            yield f"sinks.{name}.url", path.removeprefix("//")
    for name, agent in configuration.agents.items():
        path = getattr(agent, "state_file", "")
        if path:
            yield f"agents.{name}.state-file", os.path.dirname(path)
        directory = getattr(agent, "state_directory", "")
        if directory:
            yield f"agents.{name}.state-directory", directory
