"""Attribution of processes to owner, job and container, and selection of processes.

These values seldom change and are the costliest to read. Most readings reuse them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError
from ccagent.machine.cgroup.jobs import (
    CgroupMembership,
    Step,
    find_membership,
    read_step,
)
from ccagent.machine.procfs.process_files import KERNEL_THREAD, STEP_DAEMON, command_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ccagent.agents.sonar.process import ProcessEntry, ProcessSelection
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.process_files import ProcessStat

_NESTED = re.compile(rb"^NSpid:\t[0-9]+\t", re.MULTILINE)
_MOUNT = re.compile(rb"^([0-9]+) [0-9]+ ([0-9]+:[0-9]+ [^ \n]+) ([^ \n]+) ", re.MULTILINE)
_FIRST = "proc/1"
_SELF = "proc/self"
_PIDS, _MOUNTS = "/ns/pid", "/ns/mnt"
_SHORTEST_LINE = 20

EVERY = 20
"""Readings after which an unchanged process is attributed again."""

ZOMBIE = b"Z"
"""State of an exited process. Its cgroup v1 path reads as the root (proc_cgroup_show() in
kernel/cgroup/cgroup.c), so the previous attribution is kept.
"""

_REMEMBERED = 10_000
_ROOT = 0
_PLACEHOLDER = b"sleep"
_EXTERN = "extern"
_ASKED_AGAIN_AFTER = 5.0
_DEEPEST = 1_000
_NO_STEP = Step(0, "")


class RootMount(NamedTuple):
    """The mounts of a process. root: device and directory of `/`, empty if `/` is no mount.

    number: id of the mount at `/`. numbers: ids of all mounts; each namespace has others.
    """

    root: bytes
    number: bytes
    numbers: frozenset[bytes]


def parse_root_mount(mountinfo: bytes) -> RootMount:
    """Parse /proc/PID/mountinfo. The last of several mounts at `/` hides the others."""
    root = number = b""
    numbers: list[bytes] = []
    for mount, source, point in _MOUNT.findall(mountinfo):
        numbers.append(mount)
        if point == b"/":
            root, number = source, mount
    return RootMount(root, number, frozenset(numbers))


def is_in_nested_pids(status: bytes) -> bool:
    """Return whether /proc/PID/status is of a process in a PID namespace below the reader's."""
    return _NESTED.search(status) is not None


class Containers:
    """Detects processes in containers, by namespaces and root directory. See namespaces(7).

    A process is in a container if it has another PID namespace than process 1, or another mount
    namespace and another root directory or user namespace. Services of systemd have mount
    namespaces of their own (PrivateTmp=, ProtectSystem=), with the root and the users of the
    machine.

    /proc/PID/ns is for the process's user and for CAP_SYS_PTRACE, and is read first: it is cheap.
    Everybody may read the PIDs in nested namespaces (NSpid in `status`), the mounts, with other ids
    in each namespace, and the map of users.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._first = RootMount(b"", b"", frozenset())
        self._outside = self._find_outside()

    def is_inside(self, pid: int | str) -> bool:
        """Return whether a process is in a container. Raise the errors of Node.read."""
        path = f"proc/{pid}"
        if self._outside is not None:
            # The links are read, not followed: that costs the kernel half as much.
            link = self._node.link
            pids, mounts = self._outside
            try:
                if link(path + _PIDS) != pids:
                    return True
                if link(path + _MOUNTS) == mounts:
                    return False
            except CcagentError:
                pass
        return self._is_inside_by_mounts(path)

    def _find_outside(self) -> tuple[str, str] | None:
        """Return the namespaces of a process outside of containers; None if none is readable.

        Some security modules forbid those of process 1 even for root.
        """
        for path in (_FIRST, _SELF):
            try:
                namespaces = self._node.link(path + _PIDS), self._node.link(path + _MOUNTS)
                if path == _FIRST or not self._is_inside_by_mounts(path):
                    return namespaces
            except CcagentError:
                continue
        return None

    def _is_inside_by_mounts(self, path: str) -> bool:
        # The kernel formats a line of each mount, but no more of them than are read.
        number = self._node.read_start(f"{path}/mountinfo", _SHORTEST_LINE).partition(b" ")[0]
        if is_in_nested_pids(self._node.read_single(f"{path}/status")):
            return True
        if number in self._first.numbers:
            return False
        self._first = parse_root_mount(self._node.read(f"{_FIRST}/mountinfo"))
        mounts = parse_root_mount(self._node.read(f"{path}/mountinfo"))
        if number in self._first.numbers:
            return False
        # Without a mount at `/` the root directory is that of chroot(2).
        if mounts.root and mounts.root != self._first.root:
            return True
        return self._users(path) != self._users(_FIRST)

    def _users(self, path: str) -> bytes:
        return self._node.read_single(f"{path}/uid_map")


class ProcessAttribution:
    """Attributes processes to jobs and containers. entries: all known processes, by pid."""

    def __init__(
        self, node: Node, selection: ProcessSelection, entries: Mapping[str, ProcessEntry]
    ) -> None:
        self._node = node
        self._selection = selection
        self._entries = entries
        self._memberships: dict[bytes, CgroupMembership] = {}
        self._containers = Containers(node)
        self._ancestry: Ancestry | None = None

    @property
    def asks_ancestors(self) -> bool:
        """Return whether job attribution also uses ancestors (False until `look_for_steps`)."""
        return self._ancestry is not None

    def look_for_steps(self) -> None:
        """Enable attribution by ancestors: Slurm has job steps on this node."""
        if self._ancestry is None:
            self._ancestry = Ancestry(self._node, self._descent)

    def read(self, entry: ProcessEntry) -> CgroupMembership:
        """Read cgroup and namespaces of a process. Raise the errors of Node.read for the cgroup."""
        cgroup = self._node.read_single(f"proc/{entry.name}/cgroup")
        known = self._memberships.get(cgroup)
        if known is None:
            known = find_membership(self._node, cgroup)
            if len(self._memberships) >= _REMEMBERED:
                self._memberships.clear()
            if not known.is_unknown:
                self._memberships[cgroup] = known
        status = entry.status
        # Namespaces seldom change, and almost never without the start of another program.
        if entry.contained_as != status.command and not status.flags & KERNEL_THREAD:
            entry.contained_as = status.command
            try:
                entry.in_container = self._containers.is_inside(entry.name)
            except CcagentError:
                return known._replace(container=entry.in_container)
        return known._replace(container=True) if entry.in_container else known

    def apply(self, entry: ProcessEntry, membership: CgroupMembership | None) -> None:
        """Set job, container and `wanted` of an entry. None means that the cgroup is unknown."""
        status = entry.status
        command = command_text(status.command, b"")
        if status.command == STEP_DAEMON:
            self.look_for_steps()
        if membership is not None:
            if self._ancestry is None or status.flags & KERNEL_THREAD:
                entry.job = membership.job
            else:
                entry.job, entry.descent = self._ancestry.job(
                    status, entry.descent, entry.uid, membership
                )
        entry.wanted = self._selection.wants(
            self._node, entry.uid, command, in_container=entry.in_container
        )

    def _descent(self, pid: int) -> tuple[ProcessStat, int] | None:
        entry = self._entries.get(str(pid))
        return None if entry is None else (entry.status, entry.descent)


class Ancestry:
    """Finds the job of a process by its ancestors, if its cgroup has none (proctrack/linuxproc).

    All processes of a step descend from slurmstepd, and the title of slurmstepd names the step. The
    kernel records parents. Any user can choose process names and titles, so only processes of root
    are trusted. The environment (SLURM_JOB_ID) is not read: the user controls all of it.

    look_up: returns the stat of a pid and the job last found through its ancestors (0 for none);
    None for an unknown pid.
    """

    def __init__(
        self, node: Node, look_up: Callable[[int], tuple[ProcessStat, int] | None]
    ) -> None:
        self._node = node
        self._look_up = look_up
        # By pid and start time. A result without a step is valid until this monotonic time.
        self._known: dict[tuple[int, int], tuple[Step | None, float]] = {}

    def job(
        self, status: ProcessStat, descent: int, uid: int, membership: CgroupMembership
    ) -> tuple[int, int]:
        """Return the job of a process and the job found through its ancestors; 0 for none.

        descent: the job found through ancestors before; it stays valid after they have ended. The
        cgroup takes priority: it has the job id of each component of a heterogeneous job.
        """
        if membership.job:
            own = self._is_slurms_own(status, uid, membership.step)
            return (0 if own else membership.job), descent
        step = Step(descent, "") if descent else self._step(status)
        if not step.job or self._is_slurms_own(status, uid, step.name):
            return 0, 0
        return step.job, step.job

    def _step(self, child: ProcessStat) -> Step:
        """Follow the parents of a process up to its slurmstepd."""
        for _ in range(_DEEPEST):
            parent = self._look_up(child.ppid) if child.ppid > 1 else None
            if parent is None:
                break
            status, descent = parent
            # A process that started later cannot be an ancestor: its pid was reused.
            if status.starttime > child.starttime:
                break
            if status.command == STEP_DAEMON:
                step = self._step_of(child.ppid, status.starttime)
                if step is not None:
                    return step
            if descent:
                return Step(descent, "")
            child = status
        return _NO_STEP

    def _is_slurms_own(self, status: ProcessStat, uid: int, step: str) -> bool:
        """Return whether a process of a job belongs to Slurm instead of the user's work.

        These are slurmstepd, and its `sleep` in the step `extern` while the job runs. Both run as
        root.
        """
        if uid != _ROOT:
            return False
        if status.command != _PLACEHOLDER or step != _EXTERN:
            return status.command == STEP_DAEMON
        parent = self._look_up(status.ppid)
        return parent is not None and parent[0].command == STEP_DAEMON

    def _step_of(self, pid: int, started: int) -> Step | None:
        """Return the step of a slurmstepd.

        Return None before its title is set, or if it does not run as root.
        """
        now = self._node.clock.monotonic()
        known = self._known.get((pid, started))
        if known is not None and (known[0] is not None or now < known[1]):
            return known[0]
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        step = read_step(self._node, pid)
        self._known[pid, started] = step, now + _ASKED_AGAIN_AFTER
        return step
