"""Job attribution by ancestors, for processes without a job in their cgroup (proctrack/linuxproc).

All processes of a step descend from slurmstepd, and the title of slurmstepd names the step. The
kernel records parents. Any user can choose process names and titles, so only processes of root are
trusted. The environment (SLURM_JOB_ID) is not read: the user controls all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.machine.cgroup.jobs import Step, read_step
from ccagent.machine.procfs.process_files import STEP_DAEMON

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.machine.cgroup.jobs import CgroupMembership
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.process_files import ProcessStat

_ROOT = 0
_PLACEHOLDER = b"sleep"
_EXTERN = "extern"
_REMEMBERED = 10_000
_ASKED_AGAIN_AFTER = 5.0
_DEEPEST = 1_000

_NO_STEP = Step(0, "")


class Ancestry:
    """Finds the job of a process by its ancestors.

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
