"""Which processes this user sees, and what of them.

Source: proc(5), hidepid and gid; has_pid_permissions() and do_io_accounting() in fs/proc/base.c.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ccagent.doctor.finding import Finding
from ccagent.doctor.identity import read_identity
from ccagent.doctor.mounts import mounted_at, read_mounts
from ccagent.doctor.task_iterator import is_usable
from ccagent.errors import CcagentError, NotPermittedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.doctor.demands import Site
    from ccagent.doctor.identity import Identity
    from ccagent.machine.node import Node

AREA = "processes"

_FILES = ("proc/stat", "proc/meminfo", "proc/loadavg")
_HIDEPID = {"": 0, "0": 0, "off": 0, "1": 1, "noaccess": 1, "2": 2, "invisible": 2,
            "4": 4, "ptraceable": 4}  # fmt: skip
"""Numbers are what kernels before 5.8 show."""
_TRACED = 4
_TRIED = 50
_SET = "with CapabilityBoundingSet= and AmbientCapabilities="
_ITERATOR = "load the task iterator"
_TELLS = "; the task iterator tells them"


def check_processes(site: Site) -> Iterator[Finding]:
    """Tell what /proc shows."""
    node = site.node
    absent: list[str] = []
    for path in _FILES:
        try:
            node.read(path)
        except CcagentError as error:
            absent.append(str(error))
    yield judge_proc(absent)
    identity = read_identity(node)
    mount = mounted_at(read_mounts(node), "/proc")
    is_proc = mount is not None and mount.type == "proc"
    hidepid = mount.option("hidepid") if mount is not None and is_proc else ""
    gid = mount.option("gid") if mount is not None and is_proc else ""
    visible = judge_visibility(hidepid, int(gid) if gid.isdecimal() else 0, identity)
    others = list(islice(_others(node, identity.uid), _TRIED))
    for finding in (visible, judge_io(_tried(node, others, "io"), identity)):
        yield _with_iterator(finding) if _reads_iterator(site) else finding
    yield judge_descriptors(_tried(node, others, "fd"), identity)


def judge_proc(errors: list[str]) -> Finding:
    """Judge the files of the whole node; errors: of those that can't be read."""
    if errors:
        return Finding(
            area=AREA,
            subject="/proc",
            state="problem",
            found="; ".join(errors),
            fix="mount /proc without subset=pid; in a service: ProcSubset=all",
        )
    return Finding(
        area=AREA, subject="/proc", state="good", found="stat, meminfo and loadavg can be read"
    )


def judge_visibility(hidepid: str, gid: int, identity: Identity) -> Finding:
    """Judge which processes /proc shows; gid: of the mount option, 0 if there is none."""
    level = _HIDEPID.get(hidepid)
    if level == 0:
        return _seen("/proc is mounted without hidepid")
    said = f"/proc is mounted with hidepid={hidepid}"
    if "CAP_SYS_PTRACE" in identity.capabilities:
        return _seen(f"{said}, which CAP_SYS_PTRACE overrides")
    if level in {1, 2} and gid in identity.groups:
        return _seen(f"{said} and gid={gid}, of which this user is a member")
    advice = (
        f"{_ITERATOR}, or give the service CAP_SYS_PTRACE ({_SET}; hidepid.conf of the packages)"
    )
    if level != _TRACED and gid:
        advice += f", or its user the group gid={gid} of the mount (SupplementaryGroups=)"
    return Finding(
        area=AREA,
        subject="processes of others",
        state="problem",
        found=f"{said}: this user sees its own processes alone",
        fix=advice,
    )


def judge_io(tried: bool | None, identity: Identity) -> Finding:
    """Judge whether /proc/PID/io of others can be read; None: there was none to try."""
    can = tried
    if can is None:
        # What the kernel asks for is a right to trace, and the file is its owner's alone.
        can = "CAP_SYS_PTRACE" in identity.capabilities and _reads_all(identity)
    if can:
        return Finding(
            area=AREA, subject="I/O of others", state="good", found="/proc/PID/io can be read"
        )
    return Finding(
        area=AREA,
        subject="I/O of others",
        state="problem",
        found="/proc/PID/io of other users can't be read",
        fix=f"{_ITERATOR}, or give the service CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH "
        f"({_SET}; io.conf of the packages)",
    )


def judge_descriptors(tried: bool | None, identity: Identity) -> Finding:
    """Judge whether /proc/PID/fd of others can be listed; nobody needs it so far."""
    can = _reads_all(identity) if tried is None else tried
    found = "/proc/PID/fd can be listed" if can else "/proc/PID/fd of other users can't be listed"
    return Finding(
        area=AREA,
        subject="open files of others",
        state="good" if can else "missing",
        found=found,
    )


def _reads_iterator(site: Site) -> bool:
    """Tell whether samples come from the task iterator, which hides nothing."""
    settings = site.configuration.agents.get("sample")
    source = getattr(settings, "source", "auto")
    return source in {"auto", "bpf"} and is_usable(site.node)


def _with_iterator(finding: Finding) -> Finding:
    if finding.state == "good":
        return finding
    return Finding(
        area=AREA, subject=finding.subject, state="good", found=f"{finding.found}{_TELLS}"
    )


def _seen(found: str) -> Finding:
    return Finding(area=AREA, subject="processes of others", state="good", found=found)


def _reads_all(identity: Identity) -> bool:
    return bool({"CAP_DAC_READ_SEARCH", "CAP_DAC_OVERRIDE"} & identity.capabilities)


def _others(node: Node, uid: int) -> Iterator[str]:
    """Give the ids of some processes of other users, the latest first: kernel threads are old."""
    names = [name for name in node.list("proc") if name.isdecimal()]
    for name in sorted(names, key=int, reverse=True):
        try:
            if node.owner(f"proc/{name}") != uid:
                yield name
        except CcagentError:
            continue


def _tried(node: Node, pids: list[str], name: str) -> bool | None:
    """Try to read a file or directory of processes; None if none of them has it any more."""
    refused = False
    for pid in pids:
        path = f"proc/{pid}/{name}"
        try:
            _ = node.list(path) if name == "fd" else node.read(path)
        except NotPermittedError:
            refused = True
        except CcagentError:
            continue
        else:
            return True
    return False if refused else None
