"""Who asks: the names of host and cluster, the user and what it is allowed to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.doctor.finding import Finding
from ccagent.errors import UnparsableError
from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.doctor.demands import Site
    from ccagent.machine.node import Node

AREA = "identity"
STATUS = "proc/self/status"

_FIELD = re.compile(rb"^(Uid|Gid|Groups|CapEff):[ \t]*(.*)$", re.MULTILINE)
_LINES_LIMIT = 64 * 1024

CAPABILITIES = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
"""Numbers of those that matter here (include/uapi/linux/capability.h)."""

_NAMES_OF_NOBODY = frozenset({"localhost", "localhost.localdomain", "(none)"})


class Identity(NamedTuple):
    """Effective user id, all groups, and which of CAPABILITIES are effective."""

    uid: int
    groups: frozenset[int]
    capabilities: frozenset[str]

    @property
    def is_all_powerful(self) -> bool:
        """Whether it has each of CAPABILITIES."""
        return len(self.capabilities) == len(CAPABILITIES)


def parse_identity(content: bytes) -> Identity:
    """Parse /proc/self/status, see proc(5). Raises UnparsableError."""
    fields = {name: value.split() for name, value in _FIELD.findall(content)}
    try:
        capabilities = int(fields[b"CapEff"][0], 16)
        return Identity(
            uid=int(fields[b"Uid"][1]),
            groups=frozenset(map(int, [fields[b"Gid"][1], *fields[b"Groups"]])),
            capabilities=frozenset(
                name for name, number in CAPABILITIES.items() if capabilities >> number & 1
            ),
        )
    except (KeyError, IndexError, ValueError):
        raise UnparsableError("no Uid, Gid, Groups or CapEff") from None


def read_identity(node: Node) -> Identity:
    """Read who this process is. Raises as Node.read does, and UnparsableError."""
    return read_parsed(node, STATUS, parse_identity, _LINES_LIMIT)


def check_identity(site: Site) -> Iterator[Finding]:
    """Tell of names and user."""
    node, settings = site.node, site.configuration.settings
    yield judge_host(node.hostname)
    yield judge_cluster(node.cluster, is_configured=bool(settings.cluster))
    identity = read_identity(node)
    yield judge_user(identity, node.user(identity.uid))


def judge_host(name: str) -> Finding:
    """Judge the name that records carry."""
    if name in _NAMES_OF_NOBODY:
        return Finding(
            area=AREA,
            subject="host name",
            state="problem",
            found=f"{name}, as many hosts are called",
            impact=["all: records of different nodes can't be told apart"],
            fix="give the host its name (hostnamectl hostname NAME), or set hostname",
        )
    return Finding(area=AREA, subject="host name", state="good", found=name)


def judge_cluster(name: str, *, is_configured: bool) -> Finding:
    """Judge the cluster that records carry."""
    if is_configured:
        found = f"{name}, as configured"
    elif name == "local":
        return Finding(
            area=AREA,
            subject="cluster name",
            state="problem",
            found="local, for the host's name has no domain and none is configured",
            impact=["all: records of different clusters can't be told apart"],
            fix='set cluster = "NAME" in the configuration',
        )
    else:
        found = f"{name}, the domain of the host"
    return Finding(area=AREA, subject="cluster name", state="good", found=found)


def judge_user(identity: Identity, name: str) -> Finding:
    """Tell the user; what it may not do is told where it matters."""
    held = ", ".join(sorted(identity.capabilities)) or "none"
    if identity.is_all_powerful:
        held = "all"
    advice = ""
    if identity.uid == 0:
        advice = (
            "if the service has a user of its own, ask as that one too: "
            "runuser -u USER -- ccagent doctor"
        )
    return Finding(
        area=AREA,
        subject="user",
        state="good",
        found=f"{name}, capabilities that matter: {held}",
        fix=advice,
    )
