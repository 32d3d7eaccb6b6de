"""Parser for the user, groups and capabilities in /proc/PID/status. See proc(5)."""

from __future__ import annotations

import re
from typing import NamedTuple

from ccagent.errors import UnparsableError

STATUS = "proc/self/status"

CAPABILITIES = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
"""Numbers of the capabilities that agents use (include/uapi/linux/capability.h)."""

_FIELD = re.compile(rb"^(Uid|Gid|Groups|CapEff):[ \t]*(.*)$", re.MULTILINE)


class Identity(NamedTuple):
    """Effective user id, all groups, and the effective capabilities among CAPABILITIES."""

    uid: int
    groups: frozenset[int]
    capabilities: frozenset[str]

    @property
    def is_all_powerful(self) -> bool:
        """True if the process has all of CAPABILITIES."""
        return len(self.capabilities) == len(CAPABILITIES)

    @property
    def can_read_any_file(self) -> bool:
        """True if the process bypasses file permissions."""
        return bool({"CAP_DAC_READ_SEARCH", "CAP_DAC_OVERRIDE"} & self.capabilities)

    def lacking(self, *needed: str) -> list[str]:
        """Return the needed capabilities that the process does not have."""
        return [
            name
            for name in needed
            if name not in self.capabilities
            and not (name == "CAP_DAC_READ_SEARCH" and self.can_read_any_file)
        ]


def describe_lack(content: bytes, *needed: str) -> str:
    """Return a clause that names the needed capabilities that a process lacks.

    content: of /proc/PID/status. If it is invalid, the clause names what is needed.
    """
    try:
        identity = parse_identity(content)
    except UnparsableError:
        return f"{' and '.join(needed)} needed"
    lacking = identity.lacking(*needed)
    if not lacking:
        return (
            f"this process has {' and '.join(needed)}: a user namespace, a filter of system calls"
            " or a security module forbids it"
        )
    owner = "process of root" if identity.uid == 0 else "process"
    return f"this {owner} lacks {' and '.join(lacking)}"


def parse_identity(content: bytes) -> Identity:
    """Parse /proc/PID/status. Raise UnparsableError for a missing or invalid field."""
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
    except (KeyError, IndexError, ValueError) as error:
        raise UnparsableError("no Uid, Gid, Groups or CapEff") from error
