"""State of running jobs in the daemon, for reports on this node: `ccagent job`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ccagent.machine.cgroup.counters import JobCounters


class JobMemory:
    """Samples and peaks of running jobs. Any thread may call `describe`."""

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[float, float, int, int | None]] = {}

    def note(self, jobs: dict[int, JobCounters], now: float) -> None:
        """Add a reading of all jobs and forget ended jobs. now: seconds since 1970."""
        found: dict[int, tuple[float, float, int, int | None]] = {}
        for job, counters in jobs.items():
            since, _, samples, peak = self._jobs.get(job, (now, now, 0, None))
            if counters.mem_rss is not None:
                peak = max(peak or 0, counters.mem_rss)
            found[job] = (since, now, samples + 1, peak)
        self._jobs = found

    def describe(self) -> dict[str, Any]:
        """Return by job: first and last sample, number of samples, and peak memory in B."""
        return {
            str(job): {"since": since, "last": last, "samples": samples, "memory_peak": peak}
            for job, (since, last, samples, peak) in self._jobs.items()
        }
