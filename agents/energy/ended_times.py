"""CPU time of jobs that ended since the last tick, from the kernel programs if loaded.

The cgroup of an ended job no longer exists, and its CPU time since the last tick is lost. All
processes of the job have ended, so the sum over them is its whole CPU time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.sonar.sources.ended_deltas import EndedDeltas
from ccagent.machine.bpf import pins

if TYPE_CHECKING:
    from ccagent.agents.energy.job_states import NodeSnapshot
    from ccagent.machine.node import Node

_REMEMBERED = 1000


class EndedTimes:
    """Sums the CPU time of ended processes by job. path: pinned iterator."""

    def __init__(self, path: str = f"{pins.DIRECTORY}/{pins.ENDED}".lstrip("/")) -> None:
        self.errors: list[str] = []
        self._path = path
        self._deltas: EndedDeltas | None = None
        self._sums: dict[int, int] = {}
        self._from_start: set[int] = set()
        self._closed: dict[int, None] = {}

    def read(self, node: Node, before: NodeSnapshot, now: NodeSnapshot) -> dict[int, int]:
        """Return the known CPU time in us of jobs between a snapshot and their end.

        It is known for jobs with an observed start, and for jobs that started and ended between two
        snapshots.
        """
        self.errors = []
        deltas: dict[int, int] = {}
        if self._deltas is None:
            self._deltas = EndedDeltas(node, self._path)
        for key, delta in self._deltas.read(self.errors).items():
            if key.job:
                deltas[key.job] = deltas.get(key.job, 0) + delta.runtime
        if not self._deltas.is_counting:
            self._sums, self._from_start = {}, set()
            return {}
        for job, runtime in deltas.items():
            self._sums[job] = self._sums.get(job, 0) + runtime
        if before.is_complete:
            self._from_start |= now.jobs.keys() - before.jobs.keys()
        found = self._find(before, now, deltas)
        for job in before.jobs.keys() - now.jobs.keys() | found.keys():
            self._closed[job] = None
        for job in [*self._closed][:-_REMEMBERED]:
            del self._closed[job]
        self._sums = {job: each for job, each in self._sums.items() if job in now.jobs}
        self._from_start &= now.jobs.keys()
        return found

    def _find(
        self, before: NodeSnapshot, now: NodeSnapshot, deltas: dict[int, int]
    ) -> dict[int, int]:
        if not now.is_complete:
            return {}
        found: dict[int, int] = {}
        for job in before.jobs.keys() - now.jobs.keys():
            known = before.jobs[job].cpu_time
            if job in self._from_start and known is not None and job in self._sums:
                found[job] = max(0, self._sums[job] // 1000 - known)
        if before.is_complete:
            for job, runtime in deltas.items():
                # The rest of an already closed job is not a new job.
                is_known = job in before.jobs or job in now.jobs or job in self._closed
                if not is_known and runtime >= 1000:
                    found[job] = runtime // 1000
        return found
