"""Simulated jobs on simulated nodes: what the pages show where there is no Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccagent.stores.metrics.job_details import StoredJobDetails
from ccagent.stores.metrics.job_table import StoredJob
from ccagent.views.trial.running import EVERY, SIMULATED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ccagent.stores.metrics.store import MetricStore

    Values = NDArray[np.float64]

FIRST_JOB = 4711001
_HISTORY = 6 * 3600
_CORES = 64
_MEMORY = 256
_CARDS = ("00000000:17:00.0", "00000000:65:00.0")
_GB = 1024**3 / 1e9
"""A GB of memory (1024^3) in the unit of the agent's messages, 10^9 bytes."""


class SimulatedJob(NamedTuple):
    """A job on one node.

    began, hours: hours before now, and run time; None: still running. memory: requested GB
    (1024^3). cpu: share of the cores in use. rss: share of the memory in use at the end. gpu:
    percent by card.
    """

    name: str
    user: str
    node: str
    cores: int
    memory: int
    began: float
    hours: float | None
    limit: float
    cpu: float
    rss: float
    gpu: tuple[float, ...] = ()
    state: str = "completed"


NODES = ("c001", "c002", "c003", "g001")
JOBS = (
    SimulatedJob("relax.sh", "alice", "c001", 32, 120, 3.4, 3.2, 4, 0.95, 0.78),
    SimulatedJob("train.py", "bob", "g001", 16, 120, 4.2, None, 24, 0.4, 0.6, (63, 0)),
    SimulatedJob("pipeline", "carol", "c002", 16, 32, 5.5, None, 8, 0.38, 0.7),
    SimulatedJob("fit", "dave", "c002", 16, 32, 5, 4.5, 6, 0.0618, 0.81),
    SimulatedJob(
        "assemble", "carol", "c003", 16, 32, 1.5, 0.7, 8, 0.71, 0.994, state="out_of_memory"
    ),
    SimulatedJob("convert", "frank", "c003", 8, 180, 5, 3, 4, 0.93, 0.04),
    SimulatedJob("md-17", "erin", "c001", 32, 96, 2.6, None, 4, 0.96, 0.75),
    SimulatedJob("climate", "frank", "c002", 32, 120, 2, None, 3, 0.94, 0.74),
    SimulatedJob("solver", "grace", "c003", 32, 96, 5.9, None, 6.5, 0.97, 0.72),
)


class SimulatedJobs:
    """The simulated nodes and their jobs of the hours before `now`."""

    def __init__(self, now: int) -> None:
        self.now = now // EVERY * EVERY
        self._numbers = {job: number for number, job in enumerate(JOBS, FIRST_JOB)}

    def fill(self, store: MetricStore) -> None:
        """Write the history of all nodes into a store."""
        times = np.arange(self.now - _HISTORY, self.now, EVERY)
        for node in NODES:
            for path, metric, values in self._series(node, times):
                group = store.add([((SIMULATED, node, *path), metric)], int(times[0]), EVERY)
                present = np.flatnonzero(~np.isnan(values))
                slots = (times[present] - group.start) // EVERY
                group.write_column(store.pool, 0, slots, values[present])

    def go_on(self, store: MetricStore, time: int) -> Iterator[None]:
        """Write the values at one time. Yield after each node."""
        for node in NODES:
            for path, metric, values in self._series(node, np.array([time])):
                if not np.isnan(values[0]):
                    store.write((SIMULATED, node, *path), metric, time, float(values[0]))
            yield

    def stored_jobs(self) -> Iterator[StoredJob]:
        """Yield the jobs for the store's table."""
        for job, number in self._numbers.items():
            start, stop = self._times(job)
            cards = {job.node: [*_CARDS[: len(job.gpu)]]} if job.gpu else {}
            details = StoredJobDetails(
                name=job.name, account="demo", partition="gpu" if job.gpu else "normal",
                time_limit=int(job.limit * 3600), cores=job.cores, memory=job.memory << 30,
                gpus=len(job.gpu), cpus={job.node: job.cores}, cards=cards,
                exit_code=None if stop is None else 125 * (job.state != "completed"),
            )  # fmt: skip
            state = "running" if stop is None else job.state
            yield StoredJob(
                SIMULATED, str(number), job.user, state, start, stop, (job.node,), details=details
            )

    def _times(self, job: SimulatedJob) -> tuple[int, int | None]:
        start = self.now - int(job.began * 3600)
        return start, None if job.hours is None else start + int(job.hours * 3600)

    def _series(
        self, node: str, times: NDArray[np.int64]
    ) -> Iterator[tuple[tuple[str, ...], str, Values]]:
        """Yield path below the node, metric and values of all series of a node."""
        used, memory = np.zeros(times.size), np.full(times.size, 7.5)
        cards = np.zeros((len(_CARDS), times.size))
        for job, number in self._numbers.items():
            if job.node != node:
                continue
            values = self._job_values(job, times)
            used += np.nan_to_num(values["job_cpu_util"])
            memory += np.nan_to_num(values["job_mem_rss"])
            for card, share in enumerate(job.gpu):
                cards[card] = np.where(np.isnan(values["job_cpu_util"]), 0, share)
            for metric, each in values.items():
                yield (f"job{number}",), metric, each
        noise = _noise(times, NODES.index(node))
        busy = used / _CORES
        for metric, each in {
            "cpu_user": 0.97 * busy + 0.2 * noise,
            "cpu_system": 0.03 * busy + 0.3 * noise,
            "cpu_idle": np.clip(99.5 - busy, 0, 100),
            "cpu_load": used / 100 + 0.3 * noise,
            "mem_used": memory,
            "mem_available": _MEMORY * _GB - memory,
            "net_bytes_in": (2 + busy) * noise,
            "net_bytes_out": (1 + busy) * noise,
        }.items():
            yield (), metric, np.asarray(each)
        for core in range(_CORES):
            own = np.where(core < used / 100, 98.0, 0.6) * _noise(times, core)
            yield (f"hwthread{core}",), "cpu_user", np.clip(own, 0, 100)
        for card, address in enumerate(_CARDS if node.startswith("g") else ()):
            load = cards[card] * _noise(times, card)
            yield (f"accelerator{address}",), "acc_utilization", load
            yield (f"accelerator{address}",), "acc_mem_used", 0.6 + 0.4 * load
            yield (f"accelerator{address}",), "acc_power", 62 + 3.3 * load

    def _job_values(self, job: SimulatedJob, times: NDArray[np.int64]) -> dict[str, Values]:
        """Return the metrics of a job; NaN before and after it."""
        start, stop = self._times(job)
        length = (stop or self.now) - start
        progress = np.clip((times - start) / max(1, length), 0, 1)
        noise = _noise(times, self._numbers[job])
        limit = job.memory * _GB
        held = job.rss * limit * (0.15 + 0.85 * progress)
        kills = np.where(progress >= 0.985, 1.0 * (job.state == "out_of_memory"), 0.0)
        found = {
            "job_cpu_util": np.clip(100 * job.cpu * noise, 0, 100) * job.cores,
            "job_mem_rss": held,
            "job_mem_used": np.minimum(held + 0.05 * limit, limit),
            "job_mem_peak": np.minimum(held + 0.05 * limit, limit),
            "job_mem_limit": np.full(times.size, limit),
            "job_oom_kills": kills,
            "job_io_read": 40 * noise,
            "job_io_write": 8 * noise,
        }
        is_there = (times >= start) & (times < (stop or np.inf))
        return {name: np.where(is_there, values, np.nan) for name, values in found.items()}


def _noise(times: NDArray[np.int64], key: int) -> Values:
    """Return numbers around 1, the same for the same times and key."""
    return np.asarray(1 + 0.02 * np.sin(times / 97 + key) + 0.02 * np.sin(times / 31 + 3 * key))
