"""The command `AGENT --once`: one sample, sent to all sinks at the same time, or printed."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ccagent import log
from ccagent.agents.base import Agent, agent_class, build_agent
from ccagent.config.options import Options, load_configuration, public_url
from ccagent.errors import CcagentError, ConfigurationError, ProgramError, RejectedError
from ccagent.log import logger, printable
from ccagent.records.encoding import Profile, encode_each
from ccagent.service.signals import TimeLimit, allow_interrupts
from ccagent.transports.base import Transport, build_transport

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ccagent.config.configuration import Configuration
    from ccagent.machine.node import Node
    from ccagent.queue.queue import Queue
    from ccagent.records.message import Format, Message


_EXTRAS = {"sample": ["job-cgroups"]}
"""Extras that an agent's table needs, by agent."""

_LOOK = 3600.0
_HELD = 4 * 1024 * 1024
"""Bytes of messages that are collected before the sinks get them during the sample."""


def run_once(configuration: Configuration, name: str) -> bool:
    """Sample with one agent and deliver to each of its sinks.

    Return whether all sinks have taken the sample, and the agent could read any data.

    Raise ConfigurationError, or ProgramError when the time limit is exceeded.
    """
    node = configuration.settings.make_node()
    with closing(build_agent(configuration, name)) as agent:
        return _sample_and_send(configuration, agent, node)


def _limit(agent: Agent[Any]) -> AbstractContextManager[None]:
    """Return the time limit of an agent's only sample."""
    agent.is_only_sample = True
    limit = agent.settings.time_limit
    return TimeLimit(limit.seconds, f"agent {agent.name}: not finished after {limit}")


def _sample_and_send(configuration: Configuration, agent: Agent[Any], node: Node) -> bool:
    held: list[tuple[Profile, Message]] = []
    size = 0
    with _limit(agent):
        begin = node.clock.monotonic()
        pause = agent.prepare(node)
        deliveries = [
            _Delivery(configuration, sink, build_transport(configuration.sinks[sink]))
            for sink in configuration.sinks_of(agent.name)
        ]
        node.clock.sleep(max(0.0, begin + pause - node.clock.monotonic()))
        messages = encode_each(
            agent.sample(node),
            {delivery.profile for delivery in deliveries},
            node,
            prefix=configuration.settings.topic_prefix,
            complain=agent.note_unencodable,
        )
        for profile, message in messages:
            held.append((profile, message))
            size += len(message.body)
            if size > _HELD:
                for delivery in deliveries:
                    delivery.take(held)
                held, size = [], 0
    for delivery in deliveries:
        delivery.take(held)
    delivered = _finish(deliveries)
    if any(delivery.has_lost_its_reader for delivery in deliveries):
        raise BrokenPipeError
    if delivered:
        agent.commit_sample()
        agent.save_state()
    return delivered and not agent.is_blind


def _finish(deliveries: list[_Delivery]) -> bool:
    """Send the queued messages to all sinks. Return whether no message is lost.

    Each sink has a separate thread: a hanging sink does not delay the others.
    """
    queued = [delivery for delivery in deliveries if delivery.has_queue]
    if len(queued) < 2:
        return all([delivery.finish() for delivery in deliveries])  # noqa: C419 - each is finished
    from ccagent.machine.background import BackgroundCall

    calls: list[BackgroundCall[bool]] = []
    finished: list[bool] = []
    for delivery in deliveries:
        try:
            calls.append(BackgroundCall(delivery.finish, "sink"))
        except ProgramError:  # no more threads can be started
            finished.append(delivery.finish())
    for call in calls:
        while not call.wait(_LOOK):
            pass
    # An unforeseen error of one sink is raised after all sinks have ended.
    finished += [call.result() for call in calls]
    return all(finished)


class _Delivery:
    """Delivers the messages of one run to one sink."""

    def __init__(self, configuration: Configuration, sink: str, transport: Transport) -> None:
        self._sink = sink
        self._transport = transport
        transport.is_one_shot = True
        self.profile = configuration.sinks[sink].profile
        self._queue: Queue | None = None
        self._is_delivered = True
        self.has_lost_its_reader = False
        """True after the reader of standard output was closed."""
        if transport.is_network and configuration.outbox.directory:
            from ccagent.queue.queue import Queue

            self._queue = Queue(sink, configuration.outbox)

    @property
    def has_queue(self) -> bool:
        """True if messages are stored before they are sent."""
        return self._queue is not None

    def take(self, messages: list[tuple[Profile, Message]]) -> None:
        """Queue the messages of this sink's profile, or send them if there is no queue."""
        wanted = [message for profile, message in messages if profile == self.profile]
        try:
            if self._queue is not None:
                self._queue.put(wanted)
            elif wanted and self._is_delivered:
                self._transport.send(wanted)
        except BrokenPipeError:
            self._is_delivered = False
            self.has_lost_its_reader = True
        except Exception as error:  # noqa: BLE001 - whatever a sink does, the others go on
            self._fail(error)

    def finish(self) -> bool:
        """Send the queued messages of this run and earlier ones.

        Return whether no message is lost: each is acknowledged, or in a file on disk.
        """
        try:
            if self._queue is None:
                self._transport.close()
            else:
                self._send_queued(self._queue)
        except Exception as error:  # noqa: BLE001 - whatever a sink does, the others go on
            self._fail(error)
        return self._is_delivered

    def _send_queued(self, queue: Queue) -> None:
        from ccagent.queue.sender import Sender

        with closing(Sender(self._sink, queue, self._transport)) as sender:
            sender.send_all()
        if lost := queue.count(in_memory=True):
            self._is_delivered = False
            logger.error(
                "sink %s: %d messages are lost: neither sent (%s) nor stored (%s)",
                self._sink,
                lost,
                sender.counters.last_error,
                queue.error or "no outbox on disk",
            )

    def _fail(self, error: Exception) -> None:
        """Log why messages are not delivered, with a traceback for an unforeseen error."""
        self._is_delivered = False
        if isinstance(error, CcagentError):
            logger.error("sink %s: %s", self._sink, error)
        else:
            logger.exception("sink %s: unforeseen error", self._sink)


def sample_once(
    agent: str,
    options: Options,
    *,
    verbosity: int = 0,
    assignments: tuple[str, ...] = (),
    is_dry: bool = False,
) -> int:
    """Sample once with an agent and return the exit status of the command.

    `is_dry`: print the messages for each sink, and deliver nothing.
    """
    log.configure(verbosity, is_brief=True)
    if options.form == "table" and (options.sinks or is_dry):
        other = "--dry-run" if is_dry else "--sink"
        raise ConfigurationError(f"--format table and {other} exclude each other: people read it")
    configuration = load_configuration(options, agent=agent, assignments=assignments)
    settings = configuration.settings
    log.configure(verbosity, settings.log_level, settings.log_format, is_brief=True)
    if is_dry:
        print_messages(configuration, agent)
        return 0
    allow_interrupts()  # not earlier: an interrupt during its import would crash msgspec
    if _is_for_people(options):
        return 0 if print_table(configuration, agent) else 1
    return 0 if run_once(configuration, agent) else 1


def _is_for_people(options: Options) -> bool:
    """Return whether to print a table: if requested, or on a terminal without other requests."""
    if options.form is not None:
        return options.form == "table"
    if options.sinks or options.path is not None:
        return False
    try:
        return sys.stdout.isatty()
    except (AttributeError, ValueError):  # closed
        return False


def print_messages(configuration: Configuration, name: str) -> None:
    """Sample with one agent and print each message under a line with sink, topic and size.

    The agent does not save its state: the next run sends the sample. No connection is opened.
    """
    node, prefix = configuration.settings.make_node(), configuration.settings.topic_prefix
    sinks = configuration.sinks_of(name)
    with closing(build_agent(configuration, name)) as agent, _limit(agent):
        node.clock.sleep(agent.prepare(node))
        records, complain = agent.sample(node), agent.note_unencodable
        profiles = {sink: configuration.sinks[sink].profile for sink in sinks}
        messages = list(
            encode_each(records, {*profiles.values()}, node, prefix=prefix, complain=complain)
        )
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
    from ccagent.views.record_table import format_records
    from ccagent.views.terminal import find_style, find_width, print_lines

    node = configuration.settings.make_node()
    with closing(_build_for_table(configuration, name)) as agent, _limit(agent):
        node.clock.sleep(agent.prepare(node))
        records = agent.sample(node)
        outputs: dict[str, Any] = getattr(agent, "outputs", {})
        units = {output.name: output.unit for output in outputs.values() if output is not None}
        lines = format_records(records, units, find_width(), find_style())
    print_lines(lines)
    return not agent.is_blind


def _build_for_table(configuration: Configuration, name: str) -> Agent[Any]:
    """Make the agent, in the format that its table needs."""
    kind, settings = agent_class(name), configuration.agents[name]
    extras = [*dict.fromkeys([*settings.extras, *_EXTRAS.get(name, [])])]
    wanted: Format = "sonar" if "sonar" in kind.formats else "line"
    return kind(structs.replace(settings, extras=extras), frozenset({wanted}))
