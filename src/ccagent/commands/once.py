"""One sample, sent to all sinks at the same time."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

from ccagent.config.configuration import build_agent, build_transport
from ccagent.errors import CcagentError, ProgramError
from ccagent.log import logger
from ccagent.records.encoding import encode_each

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

    from ccagent.agents.base import Agent
    from ccagent.config.configuration import Configuration
    from ccagent.machine.node import Node
    from ccagent.queue.queue import Queue
    from ccagent.records.encoding import Profile
    from ccagent.records.message import Message
    from ccagent.transports.base import Transport

_LONGEST_LIMIT = 1e9
"""A number of seconds that any timer of the kernel accepts."""

_LOOK = 3600.0
_HELD = 4 * 1024 * 1024
"""Bytes of messages that are collected before the sinks get them during the sample."""


def run_once(configuration: Configuration, name: str) -> bool:
    """Sample with one agent and deliver to each of its sinks.

    Return whether all sinks have taken the sample, and the agent could read any data.

    Raise ConfigurationError, or ProgramError when the time limit is exceeded.
    """
    node = configuration.settings.make_node()
    agent = build_agent(configuration, name)
    agent.is_only_sample = True
    try:
        return _sample_and_send(configuration, agent, node)
    finally:
        agent.close()


def _sample_and_send(configuration: Configuration, agent: Agent[Any], node: Node) -> bool:
    name = agent.name
    limit = agent.settings.time_limit.seconds
    prefix = configuration.settings.topic_prefix
    held: list[tuple[Profile, Message]] = []
    size = 0
    with time_limit(limit, f"agent {name}: not finished after {agent.settings.time_limit}"):
        begin = node.clock.monotonic()
        pause = agent.prepare(node)
        deliveries = [
            _Delivery(configuration, sink, build_transport(configuration.sinks[sink]))
            for sink in configuration.sinks_of(name)
        ]
        node.clock.sleep(max(0.0, begin + pause - node.clock.monotonic()))
        messages = encode_each(
            agent.sample(node),
            {delivery.profile for delivery in deliveries},
            node,
            prefix=prefix,
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

        sender = Sender(self._sink, queue, self._transport)
        try:
            sender.send_all()
        finally:
            sender.close()
        if queue.lost:
            self._is_delivered = False
            logger.error(
                "sink %s: %d messages are lost: neither sent (%s) nor stored (%s)",
                self._sink,
                queue.lost,
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


class _TimeOver(BaseException):
    """A BaseException, because agents catch Exception."""


@contextlib.contextmanager
def time_limit(seconds: float, text: str) -> Generator[None]:
    """Interrupt the body after a time limit, unless it hangs in the kernel.

    Raise ProgramError with `text` at the time limit.
    """

    def over(_number: int, _frame: FrameType | None) -> None:
        raise _TimeOver

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, _LONGEST_LIMIT))
    try:
        yield
    except _TimeOver as error:
        raise ProgramError(text) from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
