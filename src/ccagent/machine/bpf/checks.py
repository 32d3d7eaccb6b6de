"""Check of the task iterator: pinned, or loadable on this machine."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.machine.bpf import pins
from ccagent.machine.bpf.libbpf import BTF, open_libbpf
from ccagent.machine.checks import Check, CheckResult

if TYPE_CHECKING:
    from ccagent.machine.node import Node

PINNED = f"{pins.DIRECTORY.strip('/')}/{pins.TASKS}"

_LOCKDOWN = "sys/kernel/security/lockdown"
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
_FIRST = (5, 8)


class KernelFacts(NamedTuple):
    """Properties of the kernel that the task iterator requires.

    pinned: None if it is not pinned, else whether this user may read it. library: reason for a
    missing libbpf, "" if it is installed. lockdown: the mode, "" if unknown. has_own_pids: /proc
    belongs to a pid namespace below the initial one.
    """

    release: str
    has_btf: bool
    library: str
    lockdown: str
    pinned: bool | None
    has_own_pids: bool = False


def require_task_iterator(node: Node, impact: str) -> Check:
    """Return the check of the task iterator."""
    return Check("kernel", "task iterator", partial(find_task_iterator, node), impact)


def find_task_iterator(node: Node) -> CheckResult:
    """Check whether the task iterator is pinned and readable, else whether it could be loaded."""
    return assess_kernel(
        KernelFacts(
            release=node.read_text("proc/sys/kernel/osrelease"),
            has_btf=node.is_readable(BTF.lstrip("/")),
            library=_find_library() if node.is_live else "",
            lockdown=parse_lockdown(node.read_text(_LOCKDOWN)),
            pinned=_is_pinned(node),
            has_own_pids=_has_own_pids(node),
        )
    )


def is_iterator_usable(node: Node) -> bool:
    """Return whether this user can read the iterator, and its pids are the same as in /proc."""
    return bool(_is_pinned(node)) and not _has_own_pids(node)


def parse_lockdown(text: str) -> str:
    """Parse `none [integrity] confidentiality`. Return the mode in brackets; "" without one."""
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else ""


def is_old(release: str) -> bool:
    """Return whether a release is older than 5.8. EL 8 is excluded: it has backports."""
    match = _VERSION.match(release)
    return match is not None and (int(match[1]), int(match[2])) < _FIRST and ".el8" not in release


def assess_kernel(kernel: KernelFacts) -> CheckResult:
    """Return the finding for these properties: readable, loadable, or the obstacles."""
    if kernel.has_own_pids:
        return CheckResult(
            "missing",
            "this is a separate pid namespace, and the kernel reports other pids",
            "run ccagent on the node, not in a container; /proc is read instead",
        )
    if kernel.pinned:
        return CheckResult("good", f"/{PINNED} can be read")
    if kernel.pinned is False:
        return CheckResult(
            "problem",
            f"/{PINNED} is pinned, but this user may not read it",
            "add the user to its group, or pin it for the service's group",
        )
    lacks = [
        text
        for is_lacking, text in (
            (is_old(kernel.release), f"kernel {kernel.release} is older than 5.8"),
            (not kernel.has_btf, f"the kernel has no BTF ({BTF})"),
            (bool(kernel.library), kernel.library),
            (kernel.lockdown == "confidentiality", "lockdown=confidentiality forbids BPF reads"),
        )
        if is_lacking
    ]
    if not lacks:
        found = f"not pinned; kernel {kernel.release} with BTF and libbpf supports it"
        fix = "optional, as root: ccagent kernel load (a package: enable ccagent-kernel)"
        return CheckResult("missing", found, fix)
    fix = "processes are read from /proc instead, which works"
    if lacks == [kernel.library]:
        fix = "install it, then as root: ccagent kernel load"
    return CheckResult("missing", f"not pinned; {'; '.join(lacks)}", fix)


def _has_own_pids(node: Node) -> bool:
    try:
        return node.inode("proc/self/ns/pid") != pins.FIRST_PID_NAMESPACE
    except CcagentError:
        return False


def _is_pinned(node: Node) -> bool | None:
    try:
        node.owner(PINNED)
    except NotHereError:
        return None
    except NotPermittedError:
        return False
    return node.is_readable(PINNED)


def _find_library() -> str:
    try:
        open_libbpf()
    except NotHereError as error:
        return str(error)
    return ""
