"""Jobs by the ids of their control groups: the inodes of the directories.

Each hierarchy of version 1 has separate ids, so each id is stored with its controller, or `v2`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.machine.cgroup.jobs import job_directories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node

Id = tuple[str, int]
"""A controller, or `v2`, and an inode number."""

_V1 = ("cpuacct", "memory", "pids", "freezer", "devices")
_DEEPEST = 4
"""Levels below a job: step_0/user/task_0."""

_RETRY_AFTER = 5.0
_KNOWN_FOR = 600.0
_MOST = 100_000


class JobInodes:
    """Ids of the jobs' control groups. An unknown id causes a new reading of the directories.

    Removed groups are kept for some time, because ended processes are counted later.
    """

    def __init__(self) -> None:
        self._jobs: dict[Id, tuple[int, float]] = {}
        self._listed_at: float | None = None

    def job(self, node: Node, ids: tuple[Id, ...]) -> int:
        """Return the job of the first known id; 0 if none is known."""
        found = self._find(ids)
        now = node.clock.monotonic()
        if not found and (self._listed_at is None or now >= self._listed_at + _RETRY_AFTER):
            self._listed_at = now
            self._jobs = {
                each: known for each, known in self._jobs.items() if known[1] > now - _KNOWN_FOR
            }
            for each, job in _list_ids(node):
                if len(self._jobs) < _MOST:
                    self._jobs[each] = job, now
            found = self._find(ids)
        return found

    def _find(self, ids: tuple[Id, ...]) -> int:
        return next((self._jobs[each][0] for each in ids if each in self._jobs), 0)


def _list_ids(node: Node) -> Iterator[tuple[Id, int]]:
    """Yield the ids of all control groups of jobs, with the job."""
    try:
        directories = job_directories(node, _V1)
    except CcagentError:
        return
    for each in directories:
        for inode in _below(node, each.path, _DEEPEST):
            yield (each.controller, inode), each.job


def _below(node: Node, path: str, depth: int) -> Iterator[int]:
    try:
        yield node.inode(path)
        names = node.directories(path) if depth else ()
    except CcagentError:
        return
    for name in names:
        yield from _below(node, f"{path}/{name}", depth - 1)
