"""Checks of sinks: connection, login, and clock difference.

A probe is a login without a message, or a test message that bypasses the queue.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from ccagent import PRODUCER, RELEASE
from ccagent.agents.base import make_error
from ccagent.config.options import public_url
from ccagent.doctor.finding import Finding, Site, run_all
from ccagent.doctor.identity import compare_clocks
from ccagent.errors import CcagentError, ProgramError
from ccagent.machine.clock import timestamp
from ccagent.records.encoding import encode
from ccagent.records.envelopes import SampleAttributes, SampleData, SampleEnvelope
from ccagent.records.json_encoding import MetadataObject
from ccagent.records.points import Point
from ccagent.transports.base import ProbeResult, build_transport, transport_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.config.configuration import Configuration
    from ccagent.records.message import Message


MARK = "this is a test: ccagent sinks test"
"""Text of the test message, in `errors` of the sample."""


def try_sink(configuration: Configuration, name: str) -> str:
    """Send a test message and return the receiver's answer. Raise TransportError."""
    with closing(build_transport(configuration.sinks[name])) as transport:
        transport.is_one_shot = True
        transport.send(_messages(configuration, name))
        return transport.answer


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
        meta=MetadataObject(producer=PRODUCER, version=RELEASE),
        data=SampleData(type="sample", attributes=attributes),
    )
    profile = configuration.sinks[name].profile
    return encode([envelope, point], profile, node, prefix=settings.topic_prefix)


SECONDS = 20.0
"""Time limit of a probe in seconds. The sink's time-limit is for each answer."""

_FIXES = {
    "does not resolve": "check the name in url, and the name servers of this host",
    "connection refused": "start the server, check the port in url and firewalls",
    "certificate": "use the name in url that its certificate is for, set ca-file to its CA",
    "tls": "check whether the port is the one with TLS, and the scheme of url fits",
    "login": "check user and password-file or token-file, and that the server knows them",
    "password": "check user and password-file or token-file, and that the server knows them",
    "authori": "check user and password-file or token-file, and that the server knows them",
    "over nats only": 'name a sink nats:// in the agent jobs, with receiver = "cc-backend"',
    "no stream takes": "make a stream that takes it (nats stream add), or set subject",
    "no jetstream": "turn JetStream on for the account of this user, or leave out jetstream",
    "no answer": "check firewalls on the way, and whether the server hangs",
    "not finished after": "check firewalls on the way, and whether the server hangs",
    "permission denied": "let this user write there",
    "not a directory": "set another path in url",
    "read-only": "mount it for writing, or set another path in url",
}
"""Fixes by words of the reason. The first match is used."""


def check_sinks(site: Site) -> Iterator[Finding]:
    """Probe all sinks in parallel, each with a time limit."""
    configuration = site.configuration
    names = list(configuration.sinks)
    tasks = [partial(_probe, configuration, name, delivers=site.delivers) for name in names]
    for name, outcome in zip(names, run_all(tasks, SECONDS), strict=True):
        yield assess_sink(name, configuration.sinks[name].url, outcome)
        if isinstance(outcome, ProbeResult) and outcome.clock_offset is not None:
            yield compare_clocks(name, outcome.clock_offset, outcome.uncertainty)


def assess_sink(name: str, url: str, outcome: ProbeResult | CcagentError | None) -> Finding:
    """Return the result for a probe. None: a probe without a message is impossible."""
    subject = f"sink {name}"
    if isinstance(outcome, CcagentError):
        reason = str(outcome)
        if isinstance(outcome, ProgramError):
            reason = f"{hide_secrets(url)}: {reason}"
        impact = ["messages stay in the queue, and in the end are dropped"]
        return Finding("sinks", subject, "problem", reason, _choose_fix(reason), impact, [subject])
    if outcome is None:
        found = f"{hide_secrets(url)}: not tried; it can't be without a message"
        fix = f"`ccagent sinks test {name}` or --deliver sends one"
        return Finding("sinks", subject, "good", found, fix)
    return Finding("sinks", subject, "good", f"{hide_secrets(url)}: {outcome.message}")


def hide_secrets(url: str) -> str:
    """Return a URL without user, password and query."""
    return public_url(url) if transport_class(url).is_network else url.rstrip(":")


def _choose_fix(reason: str) -> str:
    lower = reason.lower()
    for words, fix in _FIXES.items():
        if words in lower:
            return fix
    return "see the receiver's answer"


def _probe(configuration: Configuration, name: str, *, delivers: bool) -> ProbeResult | None:
    """Deliver, or only connect and log in; None if that is impossible. Raise TransportError."""
    if delivers:
        return ProbeResult(f"took a message; {try_sink(configuration, name)}".rstrip("; "))
    with closing(build_transport(configuration.sinks[name])) as transport:
        return transport.probe(_messages(configuration, name)[0])
