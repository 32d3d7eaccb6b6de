"""Each configured sink: whether it can be reached, lets us in, and has the same time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ccagent.cli.sink_probe import reach_sink, try_sink
from ccagent.config.registry import transport_class
from ccagent.doctor.clock import judge_other_clock
from ccagent.doctor.finding import Finding
from ccagent.doctor.together import together
from ccagent.errors import CcagentError, ProgramError
from ccagent.transports.base import ProbeResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.config.configuration import Configuration
    from ccagent.doctor.demands import Site

SECONDS = 20.0
"""Which a sink has; its own time-limit is for each answer."""

_REMEDIES = {
    "does not resolve": "see to the name in url, and to the name servers of this host",
    "connection refused": "start the server, see to the port in url and to firewalls",
    "certificate": "use the name in url that its certificate is for, set ca-file to who signed it",
    "tls": "see whether the port is the one with TLS, and the scheme of url fits",
    "login": "see to user and to password-file or token-file, and that the server knows them",
    "password": "see to user and to password-file or token-file, and that the server knows them",
    "authori": "see to user and to password-file or token-file, and that the server knows them",
    "no stream takes": "make a stream that takes it (nats stream add), or set subject",
    "no jetstream": "turn JetStream on for the account of this user, or leave out jetstream",
    "no answer": "see to firewalls between here and there, and whether the server hangs",
    "not finished after": "see to firewalls between here and there, and whether the server hangs",
    "permission denied": "let this user write there",
    "not a directory": "set another path in url",
    "read-only": "mount it for writing, or set another path in url",
}
"""What helps, by words of the reason; the first that fits."""


def check_sinks(site: Site) -> Iterator[Finding]:
    """Reach all sinks at once, each within its limit."""
    configuration = site.configuration
    names = list(configuration.sinks)
    tasks = [partial(_reached, configuration, name, delivers=site.delivers) for name in names]
    for name, outcome in zip(names, together(tasks, SECONDS), strict=True):
        yield judge_sink(name, configuration.sinks[name].url, outcome)
        if isinstance(outcome, ProbeResult) and outcome.clock_offset is not None:
            yield judge_other_clock(name, outcome.clock_offset, outcome.uncertainty)


def judge_sink(name: str, url: str, outcome: ProbeResult | CcagentError | None) -> Finding:
    """Judge what reaching a sink has given; None: it can't be without delivering."""
    subject = f"sink {name}"
    if isinstance(outcome, CcagentError):
        reason = str(outcome)
        if isinstance(outcome, ProgramError):
            reason = f"{shown(url)}: {reason}"
        return Finding(
            area="sinks",
            subject=subject,
            state="problem",
            found=reason,
            impact=["what is sent there waits in the outbox, and in the end is dropped"],
            stops=[subject],
            fix=_remedy(reason),
        )
    if outcome is None:
        found = f"{shown(url)}: not tried; it can't be without a message"
        advice = f"`ccagent sinks test {name}` or --deliver sends one"
        return Finding(area="sinks", subject=subject, state="good", found=found, fix=advice)
    return Finding(
        area="sinks", subject=subject, state="good", found=f"{shown(url)}: {outcome.message}"
    )


def shown(url: str) -> str:
    """Give a URL without what could be secret in it."""
    if not transport_class(url).is_network:
        return url.rstrip(":")
    scheme, colon, rest = url.partition(":")
    slashes = "//" if rest.startswith("//") else ""
    return f"{scheme}{colon}{slashes}{rest.lstrip('/').partition('?')[0].rpartition('@')[2]}"


def _remedy(reason: str) -> str:
    lower = reason.lower()
    for words, remedy in _REMEDIES.items():
        if words in lower:
            return remedy
    return "see to what the other side says"


def _reached(configuration: Configuration, name: str, *, delivers: bool) -> ProbeResult | None:
    if delivers:
        return ProbeResult(f"took a message; {try_sink(configuration, name)}".rstrip("; "))
    return reach_sink(configuration, name)
