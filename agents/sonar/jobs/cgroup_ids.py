"""Job attribution by ids of control groups, for processes that /proc no longer shows.

An id is the inode of the group's directory, as in the kernel's records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.machine.cgroup.inodes import JobInodes
from ccagent.machine.procfs.process_cgroup import NO_MEMBERSHIP, CgroupMembership

if TYPE_CHECKING:
    from ccagent.machine.bpf.ended_records import EndedKey
    from ccagent.machine.bpf.task_records import Task
    from ccagent.machine.node import Node

_ROOT = 1
"""The id of the cgroup at the root of a hierarchy."""

_MOST = 10_000


class CgroupMemberships:
    """Memberships by ids of cgroups, as read from /proc before; the file system for other ids.

    descents: by process group, the job that the ancestors of its processes name, 0 for none.
    """

    def __init__(self, node: Node) -> None:
        self.descents: dict[int, int] = {}
        self._node = node
        self._seen: dict[tuple[int, int], CgroupMembership | None] = {}
        self._inodes = JobInodes()

    def learn(self, task: Task, membership: CgroupMembership) -> CgroupMembership:
        """Remember the membership that /proc showed, and return it or a more specific one.

        With version 1 a process that has exited meanwhile reads as without a job. Cgroups with
        processes of several memberships are not used further: other controllers have their jobs.
        """
        if membership == NO_MEMBERSHIP:
            better = self.for_task(task)
            if better.job:
                return better
        if len(self._seen) >= _MOST:
            self._seen.clear()
        cgroups = (task.cgroup, task.cpuacct)
        known = self._seen.setdefault(cgroups, membership)
        if known is not None and known != membership:
            self._seen[cgroups] = None
        return membership

    def for_task(self, task: Task) -> CgroupMembership:
        """Return the membership of a process whose files can't be read."""
        return self._of(task.cgroup, task.cpuacct, task.memory)

    def for_ended(self, key: EndedKey) -> CgroupMembership:
        """Return the membership of ended processes that the kernel has summed up."""
        if key.job:
            return CgroupMembership(key.job, "", container=False)
        membership = self._of(key.cgroup, key.cpuacct)
        if membership.job:
            return membership
        return membership._replace(job=self.descents.get(key.pgid, 0))

    def _of(self, cgroup: int, cpuacct: int, memory: int = _ROOT) -> CgroupMembership:
        known = self._seen.get((cgroup, cpuacct))
        if known is not None:
            return known
        ids = (("v2", cgroup), ("cpuacct", cpuacct), ("memory", memory))
        wanted = tuple(each for each in ids if each[1] > _ROOT)
        if not wanted:
            return NO_MEMBERSHIP
        return CgroupMembership(self._inodes.job(self._node, wanted), "", container=False)
