"""One sample, from the machine to the sinks; several sinks are served at the same time."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

from ccagent.config.configuration import build_agent, build_transport
from ccagent.errors import CcagentError, ProgramError
from ccagent.log import logger
from ccagent.machine.node import Node
from ccagent.records.message import encode_each

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

    from ccagent.agents.base import Agent
    from ccagent.config.configuration import Configuration
    from ccagent.queue.queue import Queue
    from ccagent.records.message import Message
    from ccagent.transports.base import Transport

_LONGEST_LIMIT = 1e9
"""Seconds that a timer of the kernel certainly takes."""

_LOOK = 3600.0
_HELD = 4 * 1024 * 1024
"""Bytes that are held before they are handed on while the agent still samples."""


def run_once(configuration: Configuration, name: str) -> bool:
    """Sample with one agent and deliver to each of its sinks.

    Return whether all have taken it, and the agent could read anything of what it is about.

    Raise ConfigurationError, and ProgramError when the time limit is over.
    """
    settings = configuration.settings
    node = Node(hostname=settings.hostname, cluster=settings.cluster)
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
    held: list[Message] = []
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
            agent.wanted,
            node,
            prefix=prefix,
            complain=agent.note_unencodable,
        )
        for message in messages:
            held.append(message)
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
    """Send what is queued to all sinks. Return whether nothing is lost.

    A sink that hangs does not hold up the others: each is sent to in a thread of its own.
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
        except ProgramError:  # there are no more threads
            finished.append(delivery.finish())
    for call in calls:
        while not call.wait(_LOOK):
            pass
    # An unforeseen error of one is raised when all have ended.
    finished += [call.result() for call in calls]
    return all(finished)


class _Delivery:
    """The messages of one run on their way to one sink."""

    def __init__(self, configuration: Configuration, sink: str, transport: Transport) -> None:
        self._sink = sink
        self._transport = transport
        transport.is_one_shot = True
        self._settings = configuration.sinks[sink]
        self._queue: Queue | None = None
        self._is_delivered = True
        self.has_lost_its_reader = False
        """True after the reader of standard output has gone."""
        if transport.is_network and configuration.outbox.directory:
            from ccagent.queue.queue import Queue

            self._queue = Queue(sink, configuration.outbox)

    @property
    def has_queue(self) -> bool:
        """True if messages are stored before they are sent."""
        return self._queue is not None

    def take(self, messages: list[Message]) -> None:
        """Queue messages, or send them if there is no queue."""
        fitted = (self._settings.fit(message) for message in messages)
        wanted = [message for message in fitted if message is not None]
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
        """Send what is queued, of this run and earlier ones.

        Return whether nothing is lost: each message is acknowledged, or in a file on disk.
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
        """Log why messages are not delivered, with a traceback if nobody foresaw it."""
        self._is_delivered = False
        if isinstance(error, CcagentError):
            logger.error("sink %s: %s", self._sink, error)
        else:
            logger.exception("sink %s: unforeseen error", self._sink)


class _TimeOver(BaseException):
    """Passes through whatever an agent catches, being no error of its own."""


@contextlib.contextmanager
def time_limit(seconds: float, text: str) -> Generator[None]:
    """Interrupt what takes longer, unless the kernel itself hangs in it."""

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
