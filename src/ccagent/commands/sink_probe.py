"""Probes of a sink: a test message that bypasses the queue, or a login without a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent import PRODUCER, __version__
from ccagent.agents.base import make_error
from ccagent.config.configuration import build_transport
from ccagent.machine.clock import timestamp
from ccagent.records.encoding import encode
from ccagent.records.envelopes import MetadataObject, SampleAttributes, SampleData, SampleEnvelope
from ccagent.records.points import Point

if TYPE_CHECKING:
    from ccagent.config.configuration import Configuration
    from ccagent.records.message import Message
    from ccagent.transports.base import ProbeResult

MARK = "this is a test: ccagent sinks test"
"""Text of the test message, in `errors` of the sample."""


def try_sink(configuration: Configuration, name: str) -> str:
    """Send a test message and return the receiver's answer. Raise TransportError."""
    settings = configuration.sinks[name]
    transport = build_transport(settings)
    transport.is_one_shot = True
    try:
        transport.send(_messages(configuration, name))
        return transport.answer
    finally:
        transport.close()


def reach_sink(configuration: Configuration, name: str) -> ProbeResult | None:
    """Connect and log in without a message; None if that is impossible. Raise TransportError."""
    transport = build_transport(configuration.sinks[name])
    try:
        return transport.probe(_messages(configuration, name)[0])
    finally:
        transport.close()


def _messages(configuration: Configuration, name: str) -> list[Message]:
    """Return a test message that receivers accept, and that does not change their data.

    It is a true sample of the node without processes, or the metric `ccagent_test`.
    """
    from ccagent.machine.system_state import read_system

    settings = configuration.settings
    node = settings.make_node()
    tags = {"cluster": node.cluster, "hostname": node.hostname, "type": "node"}
    point = Point("ccagent_test", tags, 1, node.clock.time())
    _, system = read_system(node, [])
    attributes = SampleAttributes(
        time=timestamp(node.clock.time()),
        cluster=node.cluster,
        node=node.hostname,
        system=system,
        errors=[make_error(node, MARK)],
    )
    envelope = SampleEnvelope(
        meta=MetadataObject(producer=PRODUCER, version=__version__),
        data=SampleData(type="sample", attributes=attributes),
    )
    profile = configuration.sinks[name].profile
    return encode([envelope, point], profile, node, prefix=settings.topic_prefix)
