"""Slurm's jobs on this node, from their control groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, ControlError, NotHereError
from ccagent.machine.cgroup.jobs import job_directories

if TYPE_CHECKING:
    from ccagent.machine.node import Node

_CONTROLLERS = ("memory", "cpuacct", "freezer")


def find_jobs(node: Node) -> frozenset[int] | None:
    """Return the jobs on this node; None if a directory can't be read."""
    errors: list[CcagentError] = []
    try:
        found = job_directories(node, _CONTROLLERS, lambda _, error: errors.append(error))
    except NotHereError:
        return frozenset()
    return None if errors else frozenset(directory.job for directory in found)


def find_owner(node: Node, *, is_needed: bool) -> int:
    """Return the only job on the node; 0 without one.

    Raise ControlError if exactly one is required and none or several exist.
    """
    jobs = find_jobs(node)
    if jobs is not None and len(jobs) == 1:
        return min(jobs)
    if is_needed:
        count = "the jobs on it can't be read" if jobs is None else f"{len(jobs)} jobs are on it"
        raise ControlError(f"set only while exactly one job is on this node (owner-only): {count}")
    return 0
