"""Attribution of processes to owner, job and container, and selection of processes.

These values seldom change and are the costliest to read. Most readings reuse them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.sonar.jobs.containers import Containers
from ccagent.errors import CcagentError, NotHereError, NotPermittedError, VanishedError
from ccagent.machine.cgroup.jobs import NO_MEMBERSHIP, CgroupMembership, find_membership
from ccagent.machine.procfs.process_files import KERNEL_THREAD, STEP_DAEMON, command_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.agents.sonar.jobs.ancestry import Ancestry
    from ccagent.agents.sonar.jobs.selection import ProcessSelection
    from ccagent.agents.sonar.process import ProcessEntry
    from ccagent.agents.sonar.sources.complaints import Complaints
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.process_files import ProcessStat

EVERY = 20
"""Readings after which an unchanged process is attributed again."""

ZOMBIE = b"Z"
"""State of an exited process. Its cgroup v1 path reads as the root (proc_cgroup_show() in
kernel/cgroup/cgroup.c), so the previous attribution is kept.
"""

_REMEMBERED = 10_000


class ProcessAttribution:
    """Attributes processes to jobs and containers. entries: all known processes, by pid."""

    def __init__(
        self,
        node: Node,
        selection: ProcessSelection,
        entries: Mapping[str, ProcessEntry],
        complaints: Complaints,
    ) -> None:
        self._node = node
        self._selection = selection
        self._entries = entries
        self._complaints = complaints
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
            from ccagent.agents.sonar.jobs.ancestry import Ancestry

            self._ancestry = Ancestry(self._node, self._descent)

    def attribute(self, entry: ProcessEntry, reading: int) -> None:
        """Look up owner, job and container. Raise VanishedError if the process has ended."""
        was_attributed = entry.attribute_at > 0
        # Staggered by pid: the processes of one job are not all due at once.
        entry.attribute_at = reading + EVERY - (reading + int(entry.name)) % EVERY
        if was_attributed and entry.status.state == ZOMBIE:
            return
        path = f"proc/{entry.name}"
        membership: CgroupMembership | None = None
        try:
            entry.uid = self._node.owner(path)
            membership = self.read(entry)
        except NotHereError:
            self._check_existence(path)
            membership = NO_MEMBERSHIP
        except VanishedError:
            raise
        except NotPermittedError as error:
            membership = NO_MEMBERSHIP
            self._complaints.log_once("cgroup", f"jobs of some processes are unknown: {error}")
        except CcagentError as error:
            self._complaints.errors.append(str(error))
        self.apply(entry, membership)

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

    def _check_existence(self, path: str) -> None:
        """Raise VanishedError if the process has ended; otherwise the kernel has no cgroups."""
        try:
            self._node.owner(path)
        except CcagentError as error:
            raise VanishedError(path) from error

    def _descent(self, pid: int) -> tuple[ProcessStat, int] | None:
        entry = self._entries.get(str(pid))
        return None if entry is None else (entry.status, entry.descent)
