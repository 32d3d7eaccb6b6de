"""The Slurm job of a process by its ancestors, where its cgroup names none (proctrack/linuxproc).

All processes of a step descend from its slurmstepd, whose title names it. The kernel records the
descent. Any user can choose names and titles, so only those of root's processes count. The
environment (SLURM_JOB_ID) is not read: the user controls all of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError
from ccagent.machine.procfs.process_files import STEP_DAEMON

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.machine.node import Node
    from ccagent.machine.procfs.process_cgroup import CgroupMembership
    from ccagent.machine.procfs.process_files import ProcessStat

_ROOT = 0
_PLACEHOLDER = b"sleep"
_EXTERN = "extern"
_REMEMBERED = 10_000
_ASKED_AGAIN_AFTER = 5.0
_DEEPEST = 1_000

# slurmstepd: [13.batch], [13.0], [13.0+1] of a heterogeneous step; blanks overwrite the rest of the
# line that it was started with.
_TITLE = re.compile(
    rb"slurmstepd: \[([1-9][0-9]{0,9})\.(extern|batch|interactive|[0-9]{1,10})(?:\+[0-9]{1,10})?\]"
    rb"[ \0\n]*"
)
_ALL_ROOT = re.compile(rb"^Uid:\t0\t0\t0\t0$", re.MULTILINE)


class Step(NamedTuple):
    """A job step: the raw id of its job, and `extern`, `batch`, `interactive` or its number."""

    job: int
    name: str


_NO_STEP = Step(0, "")


def parse_title(cmdline: bytes) -> Step | None:
    """Parse /proc/PID/cmdline of a slurmstepd; None if it names no step."""
    match = _TITLE.fullmatch(cmdline)
    return None if match is None else Step(int(match[1]), match[2].decode("ascii"))


def is_all_root(status: bytes) -> bool:
    """Return whether real, effective, saved and file system user of /proc/PID/status are root.

    The real user of a set-user-ID program that a user has started is not.
    """
    return _ALL_ROOT.search(status) is not None


class Ancestry:
    """Job attribution by ancestors.

    `look_up` returns the stat of a pid, and the job that its own ancestors named at the last
    look-up, 0 for none; None for an unknown pid.
    """

    def __init__(
        self, node: Node, look_up: Callable[[int], tuple[ProcessStat, int] | None]
    ) -> None:
        self._node = node
        self._look_up = look_up
        # By pid and start; with the monotonic time until which a result without a step is valid.
        self._known: dict[tuple[int, int], tuple[Step | None, float]] = {}

    def job(
        self, status: ProcessStat, descent: int, uid: int, membership: CgroupMembership
    ) -> tuple[int, int]:
        """Return the job of a process, 0 for none, and the job that its ancestors name.

        `descent` is the job that they named before; it stays valid when they have ended. The
        cgroup has priority: it has the own id of each component of a heterogeneous job.
        """
        if membership.job:
            own = self._is_slurms_own(status, uid, membership.step)
            return (0 if own else membership.job), descent
        step = Step(descent, "") if descent else self._step(status)
        if not step.job or self._is_slurms_own(status, uid, step.name):
            return 0, 0
        return step.job, step.job

    def _step(self, child: ProcessStat) -> Step:
        """Climb from a process to the slurmstepd that it descends from."""
        for _ in range(_DEEPEST):
            parent = self._look_up(child.ppid) if child.ppid > 1 else None
            if parent is None:
                break
            status, descent = parent
            # A process that started later cannot be an ancestor: the pid was reused meanwhile.
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
        """Return whether a process of a job is Slurm's own and not the user's work.

        Slurm's own are slurmstepd, and the `sleep` that it keeps in the step `extern` while the job
        runs. Both belong to root.
        """
        if uid != _ROOT:
            return False
        if status.command != _PLACEHOLDER or step != _EXTERN:
            return status.command == STEP_DAEMON
        parent = self._look_up(status.ppid)
        return parent is not None and parent[0].command == STEP_DAEMON

    def _step_of(self, pid: int, started: int) -> Step | None:
        """Return the step of a slurmstepd; None for an impostor, and before it has its title."""
        now = self._node.clock.monotonic()
        known = self._known.get((pid, started))
        if known is not None and (known[0] is not None or now < known[1]):
            return known[0]
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        step = self._read(f"proc/{pid}")
        self._known[pid, started] = step, now + _ASKED_AGAIN_AFTER
        return step

    def _read(self, path: str) -> Step | None:
        try:
            if self._node.owner(path) != _ROOT:
                return None
            step = parse_title(self._node.read_single(f"{path}/cmdline"))
            if step is None or not is_all_root(self._node.read_single(f"{path}/status")):
                return None
        except CcagentError:
            return None
        return step
