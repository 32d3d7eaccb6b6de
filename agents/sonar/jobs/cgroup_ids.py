"""Job attribution by cgroup id, for processes that /proc no longer shows.

A cgroup id is the inode number of the cgroup's directory, as in the kernel's records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.machine.cgroup.files import JobInodes
from ccagent.machine.cgroup.jobs import NO_MEMBERSHIP, CgroupMembership

if TYPE_CHECKING:
    from ccagent.machine.bpf.ended_records import EndedKey
    from ccagent.machine.bpf.task_records import Task
    from ccagent.machine.node import Node

_ROOT = 1
"""The id of the cgroup at the root of a hierarchy."""

_MOST = 10_000


class CgroupMemberships:
    """Job memberships by cgroup id: from earlier reads of /proc, else from the cgroup file system.

    descents: by process group, the job found through ancestors; 0 for none.
    """

    def __init__(self, node: Node) -> None:
        self.descents: dict[int, int] = {}
        self._node = node
        self._seen: dict[tuple[int, int], CgroupMembership | None] = {}
        self._inodes = JobInodes()

    def learn(self, task: Task, membership: CgroupMembership) -> CgroupMembership:
        """Remember the membership read from /proc; return it, or a more specific one if known.

        With cgroup v1, a process that has exited reads as outside of jobs. A cgroup with processes
        of several memberships is ignored: the job is in another controller's path.
        """
        if membership == NO_MEMBERSHIP:
            better = self.for_task(task)
            if better.job:
                return better
        if membership.is_unknown:
            return membership
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
        if key.is_slurms_own:
            return NO_MEMBERSHIP
        if key.job:
            return CgroupMembership(key.job, "")
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
        return CgroupMembership(self._inodes.job(self._node, wanted), "")
