"""Checks of the names of host and cluster, and of the user with its capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.doctor.finding import Finding
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.identity import CAPABILITIES, STATUS, Identity, parse_identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.doctor.agent_checks import Site

_AREA = "identity"
_COMMON_NAMES = frozenset({"localhost", "localhost.localdomain", "(none)"})


def check_identity(site: Site) -> Iterator[Finding]:
    """Yield findings on the names and the user."""
    node = site.node
    yield assess_host(node.hostname)
    yield assess_cluster(node.cluster, is_configured=bool(site.configuration.settings.cluster))
    identity = read_parsed(node, STATUS, parse_identity)
    yield describe_user(identity, node.user(identity.uid))


def assess_host(name: str) -> Finding:
    """Return whether the host name of records is unique."""
    if name not in _COMMON_NAMES:
        return Finding(_AREA, "host name", "good", name)
    return Finding(
        _AREA,
        "host name",
        "problem",
        f"{name}, the name of many hosts",
        "set the host's name (hostnamectl hostname NAME), or hostname in the configuration",
        ["all: records of different nodes can't be distinguished"],
    )


def assess_cluster(name: str, *, is_configured: bool) -> Finding:
    """Return whether the cluster name of records is set or known."""
    if is_configured:
        return Finding(_AREA, "cluster name", "good", f"{name}, as configured")
    if name != "local":
        return Finding(_AREA, "cluster name", "good", f"{name}, the domain of the host")
    return Finding(
        _AREA,
        "cluster name",
        "problem",
        "local, for the host's name has no domain and none is configured",
        'set cluster = "NAME" in the configuration',
        ["all: records of different clusters can't be distinguished"],
    )


def describe_user(identity: Identity, name: str) -> Finding:
    """Return the user with its capabilities. Other checks report their consequences."""
    held = ", ".join(sorted(identity.capabilities)) or "none"
    if identity.is_all_powerful:
        held = "all"
    fix = ""
    if identity.uid == 0 and not identity.is_all_powerful:
        held += f"; missing: {', '.join(sorted(CAPABILITIES.keys() - identity.capabilities))}"
    if identity.uid == 0:
        fix = (
            "if the service has a separate user, also run the doctor as this user: "
            "runuser -u USER -- ccagent doctor"
        )
    return Finding(_AREA, "user", "good", f"{name}, capabilities that matter: {held}", fix)
