"""Sites for checks of the doctor: a tree that the test writes, and a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ccagent.config.configuration import check
from ccagent.doctor.finding import Finding, Site, open_checks
from tests.support.tree import TreeNode

ALL = "000001ffffffffff"
NONE = "0000000000000000"
PTRACE = f"{1 << 19:016x}"
BOTH = f"{1 << 19 | 1 << 2:016x}"


def status(uid: int = 990, capabilities: str = NONE, groups: str = "990") -> str:
    """Return the lines of /proc/self/status that count."""
    return (
        f"Name:\tpython3\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        f"Groups:\t{groups} \nNStgid:\t1\nCapPrm:\t{NONE}\nCapEff:\t{capabilities}\n"
    )


def mounted(options: str = "rw", more: str = "") -> str:
    """Return the text of /proc/self/mountinfo, with these options of /proc."""
    return (
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
        f"22 27 0:21 / /proc rw,nosuid shared:5 - proc proc {options}\n{more}"
    )


def site(node: TreeNode, **table: Any) -> Site:
    """Return a site with a configuration of this table."""
    table.setdefault("sinks", {"stdout": {"url": "stdout:"}})
    configuration = check(table, "test")
    with open_checks(configuration, node) as checks:
        return Site(node, configuration, checks)


def found(
    check_: Callable[[Site], Iterable[Finding]], node: TreeNode, **table: Any
) -> dict[str, Finding]:
    """Return the findings of a general check, by subject."""
    return {finding.subject: finding for finding in check_(site(node, **table))}
