"""Whether the kernel's task iterator is pinned here, and else whether it could be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.doctor.finding import Finding
from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.machine.bpf import pins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.doctor.demands import Site
    from ccagent.machine.node import Node

SUBJECT = "task iterator"
PINNED = f"{pins.DIRECTORY.strip('/')}/{pins.TASKS}"
"""The file that gives a record of each process."""

_BTF = "sys/kernel/btf/vmlinux"
_LOCKDOWN = "sys/kernel/security/lockdown"
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
_FIRST = (5, 8)
_LIBRARIES = ("libbpf.so.1", "libbpf.so.0")


class Kernel(NamedTuple):
    """What an iterator needs.

    release: of the kernel. pinned: None if nothing is, else whether this user may read it.
    has_own_pids: /proc is that of a pid namespace below the first.
    library: the file name of libbpf, empty if there is none. lockdown: its mode, if known.
    """

    release: str
    has_btf: bool
    library: str
    lockdown: str
    pinned: bool | None
    has_own_pids: bool = False


def check_task_iterator(site: Site) -> Iterator[Finding]:
    """Tell whether it is pinned, and what keeps it from being."""
    node = site.node
    yield judge_kernel(
        Kernel(
            release=_text(node, "proc/sys/kernel/osrelease"),
            has_btf=node.is_readable(_BTF),
            library=_library() if node.is_live else _LIBRARIES[0],
            lockdown=parse_lockdown(_text(node, _LOCKDOWN)),
            pinned=_pinned(node),
            has_own_pids=_has_own_pids(node),
        )
    )


def is_usable(node: Node) -> bool:
    """Tell whether this user can read it, and its pids are those of /proc."""
    return bool(_pinned(node)) and not _has_own_pids(node)


def parse_lockdown(text: str) -> str:
    """Give the mode in `none [integrity] confidentiality`; empty if there is none."""
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else ""


def is_old(release: str) -> bool:
    """Tell whether a release is before 5.8, where EL 8 may still have what later ones have."""
    match = _VERSION.match(release)
    return match is not None and (int(match[1]), int(match[2])) < _FIRST and ".el8" not in release


def judge_kernel(kernel: Kernel) -> Finding:
    """Judge whether the iterator can be read, or loaded."""
    if kernel.has_own_pids:
        return Finding(
            area="kernel",
            subject=SUBJECT,
            state="missing",
            found="this is a pid namespace of its own, and the kernel tells other pids",
            fix="run ccagent on the node, not in a container; /proc is read instead",
        )
    if kernel.pinned:
        return Finding(area="kernel", subject=SUBJECT, state="good", found=f"/{PINNED} can be read")
    if kernel.pinned is False:
        return Finding(
            area="kernel",
            subject=SUBJECT,
            state="problem",
            found=f"/{PINNED} is there, but this user may not read it",
            fix="add the user to its group, or have it pinned for the service's group",
        )
    lacks: list[str] = []
    if is_old(kernel.release):
        lacks.append(f"kernel {kernel.release} is older than 5.8")
    if not kernel.has_btf:
        lacks.append(f"the kernel has no BTF (/{_BTF})")
    if not kernel.library:
        lacks.append("there is no libbpf")
    if kernel.lockdown == "confidentiality":
        lacks.append("lockdown=confidentiality keeps BPF from reading")
    if not lacks:
        advice = "optional, as root: ccagent kernel load (a package: enable ccagent-kernel)"
    elif lacks == ["there is no libbpf"]:
        advice = "install libbpf (Debian: libbpf1), then as root: ccagent kernel load"
    else:
        advice = "processes are read from /proc instead, which works"
    found = f"not pinned; {'; '.join(lacks)}" if lacks else (
        f"not pinned, though kernel {kernel.release} with BTF and {kernel.library} could"
    )  # fmt: skip
    return Finding(area="kernel", subject=SUBJECT, state="missing", found=found, fix=advice)


def _text(node: Node, path: str) -> str:
    try:
        return node.read(path).decode("ascii", "replace").strip()
    except CcagentError:
        return ""


def _has_own_pids(node: Node) -> bool:
    try:
        return node.inode("proc/self/ns/pid") != pins.FIRST_PID_NAMESPACE
    except CcagentError:
        return False


def _pinned(node: Node) -> bool | None:
    try:
        node.owner(PINNED)
    except NotHereError:
        return None
    except NotPermittedError:
        return False
    return node.is_readable(PINNED)


def _library() -> str:
    import ctypes

    for name in _LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return ""
