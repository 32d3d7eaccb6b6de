"""Directories of the control groups of Slurm's jobs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ccagent.machine.node import Node

ROOT = "sys/fs/cgroup"

V2 = "v2"
"""Name for the hierarchy of version 2, with all controllers."""

# Only these paths are searched: in other paths users can create cgroups.
#
#   v1  memory/slurm/uid_5002/job_13, slurm_NODE/... where one machine has several slurmd
#   v2  system.slice/slurmstepd.scope/job_13, NODE_slurmstepd.scope likewise
_SLURM = re.compile(r"slurm(?:_(.+))?")
_SCOPE = re.compile(r"(?:(.+)_)?slurmstepd\.scope")
_USER = re.compile(r"uid_([0-9]{1,10})", re.ASCII)
_JOB = re.compile(r"job_([0-9]{1,19})", re.ASCII)


class JobDirectory(NamedTuple):
    """A control group of a job.

    controller: of version 1, or `v2`. uid: -1 if the path does not contain it. slurmd: the node
    name of the slurmd that created it, if one machine has several; else empty.
    """

    job: int
    controller: str
    path: str
    uid: int
    slurmd: str


def job_directories(
    node: Node,
    controllers: Iterable[str],
    complain: Callable[[str, CcagentError], None] | None = None,
) -> list[JobDirectory]:
    """Return the control groups of these version 1 controllers; of version 2 if none exist.

    A directory that can't be listed is omitted, and `complain` gets the pattern and the error.
    Raise NotHereError if Slurm has created no control group.
    """
    lister = _Lister(node, complain)
    found = [each for controller in controllers for each in _of_v1(lister, controller)]
    if not found:
        found = list(_of_v2(lister))
    if not lister.has_seen_slurm:
        raise NotHereError(f"/{ROOT}: Slurm has made no control groups")
    return found


class _Lister:
    """Lists names that match a pattern. has_seen_slurm: true also if a listing failed."""

    def __init__(self, node: Node, complain: Callable[[str, CcagentError], None] | None) -> None:
        self.has_seen_slurm = False
        self._node = node
        self._complain = complain

    def names(self, directory: str, form: re.Pattern[str]) -> list[tuple[str, str]]:
        """Return the matching names in a directory, each with the first group of the match."""
        try:
            names = self._node.list(directory)
        except NotHereError:
            return []
        except CcagentError as error:
            self.has_seen_slurm = True
            if self._complain is not None:
                self._complain(form.pattern, error)
            return []
        return [(name, match[1] or "") for name in sorted(names) if (match := form.fullmatch(name))]


def _of_v1(lister: _Lister, controller: str) -> Iterator[JobDirectory]:
    for slurm, slurmd in lister.names(f"{ROOT}/{controller}", _SLURM):
        lister.has_seen_slurm = True
        top = f"{ROOT}/{controller}/{slurm}"
        for user, uid in lister.names(top, _USER):
            for name, job in lister.names(f"{top}/{user}", _JOB):
                yield JobDirectory(int(job), controller, f"{top}/{user}/{name}", int(uid), slurmd)


def _of_v2(lister: _Lister) -> Iterator[JobDirectory]:
    top = f"{ROOT}/system.slice"
    for scope, slurmd in lister.names(top, _SCOPE):
        lister.has_seen_slurm = True
        for name, job in lister.names(f"{top}/{scope}", _JOB):
            yield JobDirectory(int(job), V2, f"{top}/{scope}/{name}", -1, slurmd)
