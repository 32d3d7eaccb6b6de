"""Simulated values over time of jobs on a node, and of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccagent.views.demo.placing import CARD_MEMORY, NODE_CORES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ccagent.views.demo.jobs import Shape
    from ccagent.views.demo.placing import DemoNode, PlacedJob, PlacedPart

    Values = NDArray[np.float64]

GIB = 1024**3 / 1e9
"""The unit of memory in the agent's messages: 10^9 bytes."""

_IDLE_MEMORY = 7.5
_NOISE = 0.03


class TimeSteps:
    """Times of values: `first`, then every `every` seconds. seed: of the noise."""

    def __init__(self, first: int, count: int, every: int = 60, seed: int = 0) -> None:
        self.first = first
        self.count = count
        self.every = every
        self.times = first + every * np.arange(count)
        self.seed = seed

    def noise(self, *key: int) -> Values:
        """Return random numbers around 1, reproducible for equal key and time."""
        random = np.random.default_rng([self.seed, self.first % 2**31, *key])
        return 1 + _NOISE * random.standard_normal(self.count)

    def inside(self, job: PlacedJob) -> NDArray[np.bool_]:
        """Return for each time whether a job runs."""
        end = np.inf if job.stop is None else job.stop
        found: NDArray[np.bool_] = (self.times >= job.start) & (self.times < end)
        return found

    def progress(self, job: PlacedJob) -> Values:
        """Return the progress of a job at each time, from 0 to 1; for a running job to 1 / 1.1."""
        last = self.times[-1] if job.stop is None else job.stop
        length = max(1.0, (last - job.start) * (1.1 if job.stop is None else 1.0))
        found: Values = np.clip((self.times - job.start) / length, 0, 1)
        return found


def activity(shape: Shape, progress: Values) -> Values:
    """Return the activity of a program, from 0 to 1, by its progress."""
    if shape == "starts-only":
        return np.where(progress < 0.6, 1.0, 0.02)
    if shape == "stops":
        return np.where(progress < 0.67, 1.0, 0.04)
    if shape == "fades":
        return np.where(progress < 0.67, 1.0, 0.2)
    if shape == "waves":
        return 0.97 + 0.03 * np.sin(progress * 40)
    return np.ones_like(progress)


def job_signals(job: PlacedJob, number: int, steps: TimeSteps) -> dict[str, Values]:
    """Return the metrics of a job on its node `number`; NaN before and after the job."""
    part, asked = job.parts[number], job.job
    progress, noise = steps.progress(job), steps.noise(job.number, number)
    share = asked.cpu[number] if isinstance(asked.cpu, tuple) else asked.cpu
    busy = share * activity(asked.shape if not asked.gpu else "steady", progress)
    cores = np.clip(busy * noise, 0, 1) * len(part.cores) if share else np.zeros(steps.count)
    if asked.shows == "serial":
        cores = np.clip(busy * len(part.cores) * (1 + (noise - 1) / 3), 0, 1)
    limit = asked.memory * GIB
    growth = progress if asked.shape == "grows" else np.clip(progress * 6, 0, 1)
    held = asked.rss * limit * (0.15 + 0.85 * growth)
    cache = np.minimum(asked.cache * limit * np.clip(progress * 3, 0, 1), limit - held)
    kills = np.where(progress >= 0.985, float(asked.oom_kills), 0.0)
    found = {
        "job_cpu_util": 100 * cores,
        "job_mem_rss": held,
        "job_mem_anon": 0.94 * held,
        "job_mem_shmem": 0.06 * held,
        "job_mem_file": cache + 0.06 * held,
        "job_mem_used": held + cache,
        "job_mem_peak": np.maximum.accumulate(held + cache),
        "job_mem_limit": np.full(steps.count, limit),
        "job_oom_kills": kills,
        "job_io_read": 40 * noise * (1.2 - progress) + 2e3 * asked.cache * (noise - 0.9),
        "job_io_write": 8 * noise,
        "job_pressure_cpu": np.clip(100 * (asked.threads - 1) / 4 + 2 * noise, 0, 90),
        "job_pressure_memory": asked.pressure * noise,
        "job_pressure_io": 1.5 * noise,
    }
    is_there = steps.inside(job)
    if asked.kept < 1:
        random = np.random.default_rng([job.number, steps.first % 2**31])
        is_there &= random.random(steps.count) < asked.kept
    return {name: np.where(is_there, values, np.nan) for name, values in found.items()}


def card_signals(job: PlacedJob, number: int, index: int, steps: TimeSteps) -> dict[str, Values]:
    """Return the metrics of card `index` of a job on its node `number`."""
    mean = job.job.gpu[index]
    memory = CARD_MEMORY * GIB * job.job.gpu_memory
    noise = steps.noise(job.number, number, index)
    progress = steps.progress(job)
    busy = (mean or 0.0) * activity(job.job.shape, progress)
    swing = 1 + 0.3 * np.sin(steps.times / 240 + index) if mean and mean > 30 else 1.0
    used = np.clip(busy * noise * swing, 0, 100)
    if mean is not None and mean > 0 and job.job.shape == "starts-only":
        used = np.where(progress < 0.6, used, 0.0)
    found = {
        "acc_utilization": used,
        "acc_mem_used": np.where(used > 0, memory * np.clip(progress * 20, 0.2, 1), 0.6),
        "acc_power": 65 + 3.3 * used * noise,
        "acc_temperature": 34 + 0.4 * used,
    }
    found["acc_mem_share"] = 100 * found["acc_mem_used"] / (CARD_MEMORY * GIB)
    if mean is None:
        del found["acc_utilization"]
        found["acc_mem_used"] = np.full(steps.count, memory)
    is_there = steps.inside(job)
    return {name: np.where(is_there, values, np.nan) for name, values in found.items()}


def idle_card(steps: TimeSteps, key: int) -> dict[str, Values]:
    """Return the metrics of an unused card."""
    noise = steps.noise(key)
    return {
        "acc_utilization": np.zeros(steps.count),
        "acc_mem_used": 0.6 * noise,
        "acc_mem_share": 0.7 * noise,
        "acc_power": 62 * noise,
        "acc_temperature": 33 * noise,
    }


def node_signals(
    node: DemoNode,
    here: Sequence[tuple[PlacedPart, Mapping[str, Values]]],
    threads: Sequence[Values],
    steps: TimeSteps,
    key: int,
) -> dict[str, Values]:
    """Return the metrics of a node from those of its jobs."""
    zero = np.zeros(steps.count)

    def total(metric: str) -> Values:
        return sum((np.nan_to_num(values[metric]) for _, values in here), start=zero)

    noise = steps.noise(key)
    busy = total("job_cpu_util") / NODE_CORES
    user, system = 0.97 * busy + 0.2 * noise, 0.03 * busy + 0.3 * noise
    used = _IDLE_MEMORY * noise + total("job_mem_rss")
    size = node.memory * GIB
    cache = np.minimum(18 + total("job_mem_file"), size - used)
    network = 3 * noise + 2.2 * busy
    fabric = np.where(busy > 20, 45e6 * busy * noise, 2e5 * noise)
    return {
        "cpu_user": user,
        "cpu_system": system,
        "cpu_iowait": 0.2 * noise,
        "cpu_idle": np.clip(100 - user - system - 0.2, 0, 100),
        "cpu_load": 0.3 * noise + sum(threads, start=zero),
        "mem_used": used,
        "mem_available": size - used,
        "mem_cached": cache,
        "swap_used": zero,
        "net_bytes_in": 0.6 * network,
        "net_bytes_out": 0.4 * network,
        "ib_recv": fabric,
        "ib_xmit": fabric * noise,
        "nfs4_read": 0.4 * total("job_io_read"),
        "nfs4_write": 0.6 * total("job_io_write"),
        "disk_read": 0.2 + total("job_io_read"),
        "disk_write": 0.6 * noise + total("job_io_write"),
        "pressure_cpu_some": np.clip(total("job_pressure_cpu") / 3, 0, 100),
        "pressure_memory_some": np.clip(total("job_pressure_memory"), 0, 100),
        "pressure_io_some": np.clip(total("job_pressure_io"), 0, 100),
    }


def core_signals(
    here: Sequence[tuple[PlacedPart, Mapping[str, Values]]], steps: TimeSteps, key: int
) -> Values:
    """Return `cpu_user` of a node, one row per core."""
    random = np.random.default_rng([key, steps.first % 2**31])
    found = np.clip(0.5 + 0.3 * random.standard_normal((NODE_CORES, steps.count)), 0, None)
    for part, values in here:
        used = np.nan_to_num(values["job_cpu_util"])
        count = len(part.cores)
        if float(used.max(initial=0)) < 120 and count > 1:  # one core's work
            found[part.cores[0]] += used
            continue
        spread = 1 + 0.08 * random.standard_normal((count, steps.count))
        found[list(part.cores)] += used / count * spread
    return np.clip(found, 0, 100)


def socket_signals(node: DemoNode, user: Values, steps: TimeSteps, key: int) -> dict[str, Values]:
    """Return the power and temperature of a socket."""
    noise = steps.noise(key, 7)
    del node
    return {
        "cpu_power": 88 * noise + 1.75 * user,
        "mem_power": 12 * noise + 0.2 * user,
        "temp_package": 36 + 0.38 * user * noise,
    }
