"""Detection of a preemptible kernel, which sometimes skips BPF programs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.machine.checks import read_text

if TYPE_CHECKING:
    from ccagent.machine.node import Node

_CHOSEN = re.compile(r"\((\w+)\)")
_ARGUMENT = re.compile(r"\bpreempt=(\w+)")
_NEVER = frozenset({"none", "voluntary"})
_CONFIGURED = (
    ("CONFIG_PREEMPT_NONE=y", "none"),
    ("CONFIG_PREEMPT_VOLUNTARY=y", "voluntary"),
    ("CONFIG_PREEMPT_LAZY=y", "lazy"),
    ("CONFIG_PREEMPT=y", "full"),
)


def is_preemptible(node: Node) -> bool:
    """Return whether the kernel preempts kernel code; True if unknown."""
    version = read_text(node, "proc/sys/kernel/version")
    if "PREEMPT" not in version:
        return False
    return find_mode(node, version) not in _NEVER


def find_mode(node: Node, version: str) -> str:
    """Return `none`, `voluntary`, `lazy` or `full`; "" if the mode is unknown.

    version: as in /proc/sys/kernel/version. With PREEMPT_DYNAMIC the mode is read from debugfs,
    else from the kernel's command line, else from its configuration.
    """
    if "PREEMPT_DYNAMIC" not in version:
        return "full"
    chosen = _CHOSEN.search(read_text(node, "sys/kernel/debug/sched/preempt"))
    if chosen is None:
        chosen = _ARGUMENT.search(read_text(node, "proc/cmdline"))
    if chosen is not None:
        return chosen[1]
    release = read_text(node, "proc/sys/kernel/osrelease")
    for path in (f"boot/config-{release}", f"lib/modules/{release}/config"):
        text = _read(node, path)
        for line, mode in _CONFIGURED:
            if line in text.splitlines():
                return mode
    return ""


def _read(node: Node, path: str) -> str:
    try:
        return node.read(path).decode("utf-8", "replace")
    except CcagentError:
        return ""
