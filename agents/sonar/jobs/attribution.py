"""Whose a process is: owner, job, container; and whether it is wanted.

That seldom changes, and costs more than all else, so it is not read at each reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.sonar.jobs.containers import has_supervisor
from ccagent.errors import CcagentError, NotHereError, NotPermittedError, VanishedError
from ccagent.machine.procfs.process_cgroup import NOWHERE, Placement, parse_cgroup
from ccagent.machine.procfs.process_files import KERNEL_THREAD, STEP_DAEMON, command_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.agents.sonar.jobs.ancestry import Ancestry
    from ccagent.agents.sonar.jobs.selection import Selection
    from ccagent.agents.sonar.sources.complaints import Complaints
    from ccagent.agents.sonar.sources.entry import Entry
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.process_files import Stat

EVERY = 20
"""Readings after which the place of a process is looked at again, whatever else it does."""

ZOMBIE = b"Z"
"""State of a process that has exited; of version 1 its cgroup is told as the root
(proc_cgroup_show() in kernel/cgroup/cgroup.c), so what was known before holds."""

_REMEMBERED = 10_000


class Placer:
    """Places processes; `entries` are all that are known, by pid."""

    def __init__(
        self,
        node: Node,
        selection: Selection,
        entries: Mapping[str, Entry],
        complaints: Complaints,
    ) -> None:
        self._node = node
        self._selection = selection
        self._entries = entries
        self._complaints = complaints
        self._placements: dict[bytes, Placement] = {}
        self._ancestry: Ancestry | None = None

    @property
    def asks_ancestors(self) -> bool:
        """Tell whether jobs may follow from ancestors, too."""
        return self._ancestry is not None

    def look_for_steps(self) -> None:
        """Ask for job steps among the ancestors of processes from now on: Slurm has some here."""
        if self._ancestry is None:
            from ccagent.agents.sonar.jobs.ancestry import Ancestry

            self._ancestry = Ancestry(self._node, self._descent)

    def place(self, entry: Entry, reading: int) -> None:
        """Find out owner, job and container. Raises VanishedError if the process is gone."""
        was_placed = entry.place_at > 0
        # Staggered by pid, so that the processes of one job are not all due at once.
        entry.place_at = reading + EVERY - (reading + int(entry.name)) % EVERY
        if was_placed and entry.status.state == ZOMBIE:
            return
        path = f"proc/{entry.name}"
        placement: Placement | None = None
        try:
            entry.uid = self._node.owner(path)
            placement = self.read(path)
        except NotHereError:
            self._stay_or_vanish(path)
            placement = NOWHERE
        except VanishedError:
            raise
        except NotPermittedError as error:
            placement = NOWHERE
            self._complaints.say_once("cgroup", f"jobs of some processes can't be told: {error}")
        except CcagentError as error:
            self._complaints.errors.append(str(error))
        self.settle(entry, placement)

    def read(self, path: str) -> Placement:
        """Read the cgroup of a process by its directory. Raises as Node.read does."""
        cgroup = self._node.read_single(f"{path}/cgroup")
        known = self._placements.get(cgroup)
        if known is None:
            if len(self._placements) >= _REMEMBERED:
                self._placements.clear()
            known = self._placements[cgroup] = parse_cgroup(cgroup)
        return known

    def settle(self, entry: Entry, placement: Placement | None) -> None:
        """Conclude job, container and whether it is wanted; None: the cgroup isn't known now."""
        status = entry.status
        command = command_text(status.command, b"")
        if status.command == STEP_DAEMON:
            self.look_for_steps()
        if placement is not None:
            entry.in_container = entry.in_container or placement.container
            if self._ancestry is None or status.flags & KERNEL_THREAD:
                entry.job = placement.job
            else:
                entry.job, entry.descent = self._ancestry.job(
                    status, entry.descent, entry.uid, placement
                )
        # Whoever is in a container stays there, also when its supervisor ends.
        entry.in_container = entry.in_container or has_supervisor(
            command, status.ppid, self._look_up
        )
        entry.wanted = self._selection.wants(
            self._node, entry.uid, command, in_container=entry.in_container
        )

    def _stay_or_vanish(self, path: str) -> None:
        """Tell a process that is gone from a kernel without cgroups."""
        try:
            self._node.owner(path)
        except CcagentError:
            raise VanishedError(path) from None

    def _descent(self, pid: int) -> tuple[Stat, int] | None:
        entry = self._entries.get(str(pid))
        return None if entry is None else (entry.status, entry.descent)

    def _look_up(self, pid: int) -> tuple[str, int] | None:
        entry = self._entries.get(str(pid))
        if entry is None:
            return None
        return command_text(entry.status.command, b""), entry.status.ppid
