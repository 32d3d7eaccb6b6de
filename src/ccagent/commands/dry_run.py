"""One sample printed: the messages for each sink (`--dry-run`), or a table for people."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ccagent.commands.once import time_limit
from ccagent.commands.options import public_url
from ccagent.config.configuration import build_agent
from ccagent.config.registry import agent_class
from ccagent.errors import RejectedError
from ccagent.log import printable
from ccagent.records.encoding import encode_each

if TYPE_CHECKING:
    from ccagent.agents.base import Agent
    from ccagent.config.configuration import Configuration
    from ccagent.records.message import Format, Message

_EXTRAS = {"sample": ["job-cgroups"]}
"""Extras that an agent's table needs, by agent."""


def print_messages(configuration: Configuration, name: str) -> None:
    """Sample with one agent and print each message under a line with sink, topic and size.

    The agent does not save its state: the next run sends the sample. No connection is opened.
    """
    settings = configuration.settings
    node = settings.make_node()
    agent = build_agent(configuration, name)
    agent.is_only_sample = True
    limit = agent.settings.time_limit
    prefix = settings.topic_prefix
    sinks = configuration.sinks_of(name)
    try:
        with time_limit(limit.seconds, f"agent {name}: not finished after {limit}"):
            node.clock.sleep(agent.prepare(node))
            records, complain = agent.sample(node), agent.note_unencodable
            profiles = {sink: configuration.sinks[sink].profile for sink in sinks}
            messages = list(
                encode_each(records, {*profiles.values()}, node, prefix=prefix, complain=complain)
            )
    finally:
        agent.close()
    for sink, wanted in profiles.items():
        _print(configuration, sink, [message for of, message in messages if of == wanted])


def _print(configuration: Configuration, sink: str, found: list[Message]) -> None:
    settings = configuration.sinks[sink]
    title = sink
    if not sink.startswith("--sink "):
        title = f"sink {sink} ({public_url(settings.url)})"
    lines = [] if found else [f"# {printable(title)}: no messages"]
    for message in found:
        size = len(message.body)
        lines.append(f"# {printable(title)}: {message.topic}, {message.format}, {size} bytes")
        lines.append(message.body.decode().removesuffix("\n"))
    try:
        sys.stdout.write("\n".join(lines) + "\n")
    except AttributeError:
        raise RejectedError("standard output: it is closed") from None


def print_table(configuration: Configuration, name: str) -> bool:
    """Sample with an agent and print a table. Return whether the agent could read anything.

    Raise ProgramError after the time limit, RejectedError if standard output is closed.
    """
    from ccagent.views.table.records import format_records
    from ccagent.views.terminal import find_style, find_width, print_lines

    node = configuration.settings.make_node()
    agent = _build_for_table(configuration, name)
    agent.is_only_sample = True
    limit = agent.settings.time_limit
    width, style = find_width(), find_style()
    try:
        with time_limit(limit.seconds, f"agent {name}: not finished after {limit}"):
            node.clock.sleep(agent.prepare(node))
            records = agent.sample(node)
            outputs: dict[str, Any] = getattr(agent, "outputs", {})
            units = {output.name: output.unit for output in outputs.values() if output is not None}
            lines = format_records(records, units, width, style)
    finally:
        agent.close()
    print_lines(lines)
    return not agent.is_blind


def _build_for_table(configuration: Configuration, name: str) -> Agent[Any]:
    """Make the agent, in the format that its table needs."""
    kind, settings = agent_class(name), configuration.agents[name]
    extras = [*dict.fromkeys([*settings.extras, *_EXTRAS.get(name, [])])]
    wanted: Format = "sonar" if "sonar" in kind.formats else "line"
    return kind(structs.replace(settings, extras=extras), frozenset({wanted}))
