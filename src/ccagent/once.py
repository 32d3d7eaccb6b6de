"""One sample, from the machine to the sinks, without threads."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

from ccagent.config import build_agent, build_transport
from ccagent.errors import ProgramError, TransportError
from ccagent.log import logger
from ccagent.message import encode_each
from ccagent.node import Node

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

    from ccagent.agent import Agent
    from ccagent.config import Configuration
    from ccagent.message import Message
    from ccagent.store import Store
    from ccagent.transports.base import Transport


def run_once(configuration: Configuration, name: str) -> bool:
    """Sample with one agent and deliver to each of its sinks; give whether all have taken it.

    Raises ConfigurationError, EncodingError, and ProgramError when the time limit is over.
    """
    settings = configuration.settings
    node = Node(hostname=settings.hostname, cluster=settings.cluster)
    agent = build_agent(configuration, name)
    try:
        return _sampled_and_sent(configuration, agent, node)
    finally:
        agent.close()


def _sampled_and_sent(configuration: Configuration, agent: Agent[Any], node: Node) -> bool:
    name = agent.name
    limit = agent.settings.time_limit.seconds
    with _time_limit(limit, f"agent {name}: not finished after {agent.settings.time_limit}"):
        begin = node.clock.monotonic()
        pause = agent.prepare(node)
        transports = {
            sink: build_transport(configuration.sinks[sink])
            for sink in configuration.sinks_of(name)
        }
        node.clock.sleep(max(0.0, begin + pause - node.clock.monotonic()))
        encoded = list(
            encode_each(
                agent.sample(node), agent.wanted, node, prefix=configuration.settings.topic_prefix
            )
        )
    delivered = True
    for sink, transport in transports.items():
        form = configuration.sinks[sink].format
        messages = [message for message in encoded if message.format == form]
        if transport.is_network and configuration.outbox.directory:
            delivered &= _stored_and_sent(configuration, sink, transport, messages)
            continue
        try:
            transport.send(messages)
        except TransportError as error:
            logger.error("sink %s: %s", sink, error)
            delivered = False
        finally:
            transport.close()
    if delivered:
        agent.handed_on()
    return delivered


def _stored_and_sent(
    configuration: Configuration, sink: str, transport: Transport, messages: list[Message]
) -> bool:
    """Store messages and send all that waits; what can't be sent goes with the next run."""
    from ccagent.store import Store

    store = Store(sink, configuration.outbox)
    store.put(messages)
    kept = store.is_on_disk
    return drained(sink, store, transport) or kept


def drained(sink: str, store: Store, transport: Transport) -> bool:
    """Send what waits for a sink, of this run and of earlier ones; False if something is left."""
    from ccagent.drain import Drain

    drain = Drain(sink, store, transport)
    try:
        return drain.send_all()
    finally:
        drain.close()


class _TimeOver(BaseException):
    """Passes through whatever an agent catches, being no error of its own."""


@contextlib.contextmanager
def _time_limit(seconds: float, text: str) -> Generator[None]:
    """Interrupt what takes longer, unless the kernel itself hangs in it."""

    def over(_number: int, _frame: FrameType | None) -> None:
        raise _TimeOver

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TimeOver:
        raise ProgramError(text) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
