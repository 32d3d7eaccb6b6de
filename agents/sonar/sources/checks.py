"""Checks of /proc for the process sources: visibility of processes, and access to their files.

Source: proc(5), hidepid and gid; has_pid_permissions() and do_io_accounting() in fs/proc/base.c.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotPermittedError, UnparsableError
from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, find_mount, parse_visible_mounts
from ccagent.machine.procfs.process_files import STATUS, Identity, parse_identity
from ccagent.machine.requirements import is_iterator_usable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node

_AREA = "processes"
_HIDEPID = {"": 0, "0": 0, "off": 0, "1": 1, "noaccess": 1, "2": 2, "invisible": 2,
            "4": 4, "ptraceable": 4}  # fmt: skip
"""Values of the mount option. Kernels before 5.8 show numbers."""
_PTRACEABLE = 4
_TRIED = 50
_CAPABILITY_KEYS = "with CapabilityBoundingSet= and AmbientCapabilities="
_LOAD_ITERATOR = "load the task iterator"

_LIMIT = re.compile(rb"^Max open files\s+(\d{1,20}|unlimited)\s+(\d{1,20}|unlimited)", re.MULTILINE)
_FILES_OF_PROCESS = 3
"""Files kept open per process: stat, statm, io."""
_OTHER_FILES = 256


def check_sources(node: Node, source: str) -> Iterator[Check]:
    """Yield the checks for a configured source (`auto`, `bpf`, ...).

    The task iterator also shows processes that /proc hides.
    """
    has_iterator = source in {"auto", "bpf"} and is_iterator_usable(node)
    for subject, find, impact in (
        ("processes of others", find_visibility, "processes and jobs of other users"),
        ("I/O of others", find_io, "what other users' processes read and write"),
    ):
        replaced = partial(_replace_if_read, partial(find, node), has_iterator=has_iterator)
        yield Check(_AREA, subject, replaced, impact)
    yield Check(_AREA, "open files of others", partial(find_descriptors, node))
    impact = "more CPU time: files are opened again for each sample"
    yield Check(_AREA, "open files", partial(find_limit, node), impact)


def find_visibility(node: Node) -> CheckResult:
    """Check whether /proc shows the processes of all users."""
    identity = read_parsed(node, STATUS, parse_identity)
    mount = find_mount(read_parsed(node, MOUNTINFO, parse_visible_mounts), "/proc")
    is_proc = mount is not None and mount.type == "proc"
    hidepid = mount.option("hidepid") if mount is not None and is_proc else ""
    gid = mount.option("gid") if mount is not None and is_proc else ""
    return assess_visibility(hidepid, int(gid) if gid.isdecimal() else 0, identity)


def assess_visibility(hidepid: str, gid: int, identity: Identity) -> CheckResult:
    """Check whether the mount options of /proc hide processes. gid: 0 if not set."""
    level = _HIDEPID.get(hidepid)
    if level == 0:
        return CheckResult("good", "/proc is mounted without hidepid")
    mounted = f"/proc is mounted with hidepid={hidepid}"
    if "CAP_SYS_PTRACE" in identity.capabilities:
        return CheckResult("good", f"{mounted}, which CAP_SYS_PTRACE overrides")
    if level in {1, 2} and gid in identity.groups:
        return CheckResult("good", f"{mounted} and gid={gid}, of which this user is a member")
    fix = (
        f"{_LOAD_ITERATOR}, or give the service CAP_SYS_PTRACE ({_CAPABILITY_KEYS}; hidepid.conf "
        "of the packages)"
    )
    if level != _PTRACEABLE and gid:
        fix += f", or its user the group gid={gid} of the mount (SupplementaryGroups=)"
    return CheckResult("problem", f"{mounted}: this user sees its own processes alone", fix)


def find_io(node: Node) -> CheckResult:
    """Check whether /proc/PID/io of other users can be read."""
    identity = read_parsed(node, STATUS, parse_identity)
    can_read = _try_others(node, identity.uid, "io")
    if can_read is None:
        # The kernel requires the right to trace, and the file mode allows only its owner.
        can_read = "CAP_SYS_PTRACE" in identity.capabilities and identity.can_read_any_file
    if can_read:
        return CheckResult("good", "/proc/PID/io can be read")
    needed = ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")
    lacking = " and ".join(identity.lacking(*needed) or needed)
    return CheckResult(
        "problem",
        "/proc/PID/io of other users can't be read",
        f"{_LOAD_ITERATOR}, or give the service {lacking} "
        f"({_CAPABILITY_KEYS}; io.conf of the packages)",
    )


def find_descriptors(node: Node) -> CheckResult:
    """Check whether /proc/PID/fd of other users can be listed."""
    identity = read_parsed(node, STATUS, parse_identity)
    can_list = _try_others(node, identity.uid, "fd")
    if identity.can_read_any_file if can_list is None else can_list:
        return CheckResult("good", "/proc/PID/fd can be listed")
    return CheckResult("missing", "/proc/PID/fd of other users can't be listed")


def find_limit(node: Node) -> CheckResult:
    """Check whether the files of all processes can stay open."""
    processes = sum(name.isdecimal() for name in node.list("proc"))
    return assess_limit(read_parsed(node, "proc/self/limits", parse_limit), processes)


def assess_limit(limit: int | None, processes: int) -> CheckResult:
    """Check whether the hard limit is enough; ccagent raises the soft limit to it."""
    needed = _FILES_OF_PROCESS * processes + _OTHER_FILES
    if limit is not None and limit < needed:
        return CheckResult(
            "problem",
            f"at most {limit} (RLIMIT_NOFILE), where {processes} processes want {needed}",
            f"raise the hard limit: LimitNOFILE={max(65536, 4 * needed)} in the service",
        )
    room = "any number of" if limit is None else str((limit - _OTHER_FILES) // _FILES_OF_PROCESS)
    return CheckResult(
        "good",
        f"at most {limit or 'unlimited'}: enough for {room} processes; {processes} there are",
    )


def parse_limit(content: bytes) -> int | None:
    """Return the hard limit of open files in /proc/self/limits; None if unlimited.

    Raise UnparsableError if there is no such line.
    """
    match = _LIMIT.search(content)
    if match is None:
        raise UnparsableError("no limit of open files")
    return None if match[2] == b"unlimited" else int(match[2])


def _replace_if_read(find: partial[CheckResult], *, has_iterator: bool) -> CheckResult:
    result = find()
    if result.state == "good" or not has_iterator:
        return result
    return CheckResult("good", f"{result.found}; the task iterator shows them")


def _try_others(node: Node, uid: int, name: str) -> bool | None:
    """Return whether a file of other users' processes can be read; None if no process has it.

    The latest processes come first, since the earliest are kernel threads.
    """
    is_refused = False
    for pid in islice(_list_others(node, uid), _TRIED):
        path = f"proc/{pid}/{name}"
        try:
            _ = node.list(path) if name == "fd" else node.read(path)
        except NotPermittedError:
            is_refused = True
        except CcagentError:
            continue
        else:
            return True
    return False if is_refused else None


def _list_others(node: Node, uid: int) -> Iterator[str]:
    names = [name for name in node.list("proc") if name.isdecimal()]
    for name in sorted(names, key=int, reverse=True):
        try:
            if node.owner(f"proc/{name}") != uid:
                yield name
        except CcagentError:
            continue
