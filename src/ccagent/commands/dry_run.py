"""`AGENT --dry-run`: print the messages for each sink instead of sending them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ccagent.commands.once import time_limit
from ccagent.commands.options import public_url
from ccagent.config.configuration import build_agent
from ccagent.errors import RejectedError
from ccagent.log import printable
from ccagent.records.encoding import encode_each

if TYPE_CHECKING:
    from ccagent.config.configuration import Configuration
    from ccagent.records.message import Message


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
