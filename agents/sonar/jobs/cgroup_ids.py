"""Which job control groups belong to, by their ids: for processes that /proc tells no more of.

An id is the inode of the group's directory, as the kernel's records have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.machine.cgroup.inodes import JobInodes
from ccagent.machine.procfs.process_cgroup import NOWHERE, Placement

if TYPE_CHECKING:
    from ccagent.machine.bpf.ended_records import Key
    from ccagent.machine.bpf.task_records import Task
    from ccagent.machine.node import Node

_ROOT = 1
"""The id of the cgroup at the root of a hierarchy."""

_MOST = 10_000


class CgroupPlaces:
    """Remembers where processes of the same cgroups were seen; asks the file system for others.

    descents: by process group, the job that the ancestors of its processes tell, 0 for none.
    """

    def __init__(self, node: Node) -> None:
        self.descents: dict[int, int] = {}
        self._node = node
        self._seen: dict[tuple[int, int], Placement | None] = {}
        self._inodes = JobInodes()

    def learned(self, task: Task, placement: Placement) -> Placement:
        """Remember what /proc told, and give it, or what is known better.

        Of version 1 a process that has exited meanwhile is told to be nowhere. Cgroups with
        processes in several places are no more used: other controllers tell their jobs.
        """
        if placement == NOWHERE:
            better = self.of_task(task)
            if better.job:
                return better
        if len(self._seen) >= _MOST:
            self._seen.clear()
        cgroups = (task.cgroup, task.cpuacct)
        known = self._seen.setdefault(cgroups, placement)
        if known is not None and known != placement:
            self._seen[cgroups] = None
        return placement

    def of_task(self, task: Task) -> Placement:
        """Tell where a process is that can't be asked."""
        return self._of(task.cgroup, task.cpuacct, task.memory)

    def of_ended(self, key: Key) -> Placement:
        """Tell where processes were that the kernel has summed up."""
        if key.job:
            return Placement(key.job, "", container=False)
        placement = self._of(key.cgroup, key.cpuacct)
        if placement.job:
            return placement
        return placement._replace(job=self.descents.get(key.pgid, 0))

    def _of(self, cgroup: int, cpuacct: int, memory: int = _ROOT) -> Placement:
        known = self._seen.get((cgroup, cpuacct))
        if known is not None:
            return known
        ids = (("v2", cgroup), ("cpuacct", cpuacct), ("memory", memory))
        wanted = tuple(each for each in ids if each[1] > _ROOT)
        if not wanted:
            return NOWHERE
        return Placement(self._inodes.job(self._node, wanted), "", container=False)
