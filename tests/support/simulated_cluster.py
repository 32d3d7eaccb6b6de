"""The simulated cluster: values over time of its nodes and jobs, written into a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccagent.stores.metrics.job_details import StoredJobDetails
from ccagent.stores.metrics.job_table import StoredJob
from ccagent.stores.metrics.line_keys import JOB_ENERGY, MOUNT, NETWORK, part_name
from tests.support.simulated_jobs import (
    CARD_MEMORY,
    MIB,
    NODE_CORES,
    demo_jobs,
    demo_nodes,
    place_jobs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ccagent.stores.metrics.store import MetricStore
    from tests.support.simulated_jobs import DemoJob, DemoNode, PlacedJob, PlacedPart, Shape

    Values = NDArray[np.float64]
    Series = tuple[tuple[str, ...], str, Values]
    """Path below the node, metric, values."""

    JobsHere = Sequence[tuple[PlacedPart, Mapping[str, Values]]]
    """The allocated parts of a node, each with the metrics of its job."""

CLUSTER = "demo"
EVERY = 60
DAY = 86400

_GIB = 1024**3 / 1e9
"""The unit of memory in the agent's messages: 10^9 bytes."""

_IDLE_MEMORY = 7.5
_NOISE = 0.03
_NETWORK = (("tcp", "no", 0.6), ("tcp", "yes", 0.3), ("udp", "no", 0.01))
_WATTS = {("cpu", "active"): 4.1, ("cpu", "idle"): 1.3, ("memory", "active"): 0.4,
          ("memory", "idle"): 0.2}  # fmt: skip
"""Power of a core in W."""


class TimeSteps:
    """The times of values: `first`, then every minute."""

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.count = count
        self.times = first + EVERY * np.arange(count)

    def random(self, *key: int) -> np.random.Generator:
        """Return a generator of random numbers, reproducible for equal key and time."""
        return np.random.default_rng([*key, self.first % 2**31])

    def noise(self, *key: int) -> Values:
        """Return random numbers around 1, reproducible for equal key and time."""
        random = np.random.default_rng([0, self.first % 2**31, *key])
        return 1 + _NOISE * random.standard_normal(self.count)

    def inside(self, job: PlacedJob) -> NDArray[np.bool_]:
        """Return for each time whether a job runs."""
        end = np.inf if job.stop is None else job.stop
        return np.asarray((self.times >= job.start) & (self.times < end))

    def progress(self, job: PlacedJob) -> Values:
        """Return the progress of a job at each time, from 0 to 1; for a running job to 1 / 1.1."""
        last = self.times[-1] if job.stop is None else job.stop
        length = max(1.0, (last - job.start) * (1.1 if job.stop is None else 1.0))
        return np.asarray(np.clip((self.times - job.start) / length, 0, 1))


class SimulatedCluster:
    """The simulated cluster: its nodes, and the jobs of the day before `now`."""

    def __init__(self, now: int, nodes: int = 32, jobs: list[DemoJob] | None = None) -> None:
        self.now = now // EVERY * EVERY
        self.nodes = demo_nodes(nodes)
        self.jobs = place_jobs(demo_jobs() if jobs is None else jobs, self.nodes, self.now)

    def fill(self, store: MetricStore, seconds: int = DAY) -> None:
        """Write the history of all nodes into a store."""
        steps = TimeSteps(self.now - seconds, seconds // EVERY)
        for number, node in enumerate(self.nodes):
            series = list(self._node_series(number, steps))
            wanted = [((CLUSTER, node.name, *path), metric) for path, metric, _ in series]
            # One group with a step of a minute, independent of the store's step for new series.
            group = store.add(wanted, steps.first, EVERY)
            for column, (_, _, values) in enumerate(series):
                present = np.flatnonzero(~np.isnan(values))
                if present.size:
                    slots = (steps.times[present] - group.start) // EVERY
                    group.write_column(store.pool, column, slots, values[present])

    def go_on(self, store: MetricStore, time: int) -> Iterator[None]:
        """Write the values at one time, with four digits. Yield after each node."""
        for number, node in enumerate(self.nodes):
            for path, metric, values in self._node_series(number, TimeSteps(time, 1)):
                if not np.isnan(values[0]):
                    value = round(float(values[0]), 4)
                    store.write((CLUSTER, node.name, *path), metric, time, value)
            yield

    def stored_jobs(self) -> Iterator[StoredJob]:
        """Yield the jobs for the store's table."""
        for placed in self.jobs:
            job, parts = placed.job, placed.parts
            cards = {
                part.node.name: [part.node.cards[card] for card in part.cards]
                for part in parts
                if part.cards
            }
            is_running = placed.stop is None
            details = StoredJobDetails(
                name=job.name, account=job.account, partition=job.partition,
                time_limit=int(job.limit * 3600), cores=job.cores * len(parts),
                memory=round(job.memory * len(parts)) << 30, gpus=len(job.gpu) * len(parts),
                exit_code=None if is_running else job.exit_code,
                cpus={part.node.name: len(part.cores) for part in parts}, cards=cards,
                is_exclusive=job.is_exclusive,
            )  # fmt: skip
            yield StoredJob(
                CLUSTER, str(placed.number), job.user,
                "running" if is_running else job.state.lower(), placed.start, placed.stop,
                tuple(part.node.name for part in parts), details=details,
            )  # fmt: skip

    def _node_series(self, number: int, steps: TimeSteps) -> Iterator[Series]:
        """Yield all series of a node."""
        node = self.nodes[number]
        here: list[tuple[PlacedPart, Mapping[str, Values]]] = []
        threads = np.zeros(steps.count)
        cards = [_idle_card(steps, 1000 * number + n) for n in range(len(node.cards))]
        for job, index in self._jobs_on(node, steps):
            values, part = _job_values(job, index, steps), job.parts[index]
            here.append((part, values))
            threads = threads + job.job.threads * np.nan_to_num(values["job_cpu_util"]) / 100
            level = f"job{job.number}"
            for metric, each in values.items():
                yield (level,), metric, each
            for name, metric, each in _part_values(job, index, steps):
                yield (level, name), metric, each
            is_there = steps.inside(job)
            for place, card in enumerate(part.cards):
                used = _card_values(job, index, place, steps)
                cards[card] = {
                    metric: np.where(is_there, used.get(metric, np.nan), idle)
                    for metric, idle in cards[card].items()
                }
        found = _node_values(node, here, threads, steps, number)
        for metric, each in found.items():
            yield (), metric, each
        for core, each in enumerate(_core_values(here, steps, number)):
            yield (f"hwthread{core}",), "cpu_user", each
        for socket in range(2):
            noise, user = steps.noise(number * 2 + socket, 7), found["cpu_user"]
            yield (f"socket{socket}",), "cpu_power", 88 * noise + 1.75 * user
            yield (f"socket{socket}",), "mem_power", 12 * noise + 0.2 * user
            yield (f"socket{socket}",), "temp_package", 36 + 0.38 * user * noise
        for address, metrics in zip(node.cards, cards, strict=True):
            for metric, each in metrics.items():
                yield (f"accelerator{address}",), metric, each

    def _jobs_on(self, node: DemoNode, steps: TimeSteps) -> list[tuple[PlacedJob, int]]:
        first, last = steps.times[0], steps.times[-1]
        return [
            (job, index)
            for job in self.jobs
            for index, part in enumerate(job.parts)
            if part.node is node and job.start <= last and (job.stop is None or job.stop > first)
        ]


def _activity(shape: Shape, progress: Values) -> Values:
    """Return the activity of a program, from 0 to 1, by its progress."""
    if shape == "waves":
        return np.asarray(0.97 + 0.03 * np.sin(progress * 40))
    end, after = {"starts-only": (0.6, 0.02), "stops": (0.67, 0.04), "fades": (0.67, 0.2)}.get(
        shape, (2.0, 1.0)
    )
    return np.where(progress < end, 1.0, after)


def _job_values(job: PlacedJob, number: int, steps: TimeSteps) -> dict[str, Values]:
    """Return the metrics of a job on its node `number`; NaN before and after the job."""
    part, asked = job.parts[number], job.job
    progress, noise = steps.progress(job), steps.noise(job.number, number)
    share = asked.cpu[number] if isinstance(asked.cpu, tuple) else asked.cpu
    busy = share * _activity(asked.shape if not asked.gpu else "steady", progress)
    cores = np.clip(busy * noise, 0, 1) * len(part.cores) if share else np.zeros(steps.count)
    if asked.shows == "serial":
        cores = np.clip(busy * len(part.cores) * (1 + (noise - 1) / 3), 0, 1)
    limit = asked.memory * _GIB
    growth = progress if asked.shape == "grows" else np.clip(progress * 6, 0, 1)
    held = asked.rss * limit * (0.15 + 0.85 * growth)
    cache = np.minimum(asked.cache * limit * np.clip(progress * 3, 0, 1), limit - held)
    found = {
        "job_cpu_util": 100 * cores,
        "job_mem_rss": held,
        "job_mem_anon": 0.94 * held,
        "job_mem_shmem": 0.06 * held,
        "job_mem_file": cache + 0.06 * held,
        "job_mem_used": held + cache,
        "job_mem_peak": np.maximum.accumulate(held + cache),
        "job_mem_limit": np.full(steps.count, limit),
        "job_oom_kills": np.where(progress >= 0.985, float(asked.oom_kills), 0.0),
        "job_io_read": 40 * noise * (1.2 - progress) + 2e3 * asked.cache * (noise - 0.9),
        "job_io_write": 8 * noise,
        "job_pressure_cpu": np.clip(100 * (asked.threads - 1) / 4 + 2 * noise, 0, 90),
        "job_pressure_memory": asked.pressure * noise,
        "job_pressure_io": 1.5 * noise,
    }
    is_there = steps.inside(job)
    if asked.kept < 1:
        is_there &= steps.random(job.number).random(steps.count) < asked.kept
    return {name: np.where(is_there, values, np.nan) for name, values in found.items()}


def _part_values(
    job: PlacedJob, number: int, steps: TimeSteps
) -> Iterator[tuple[str, str, Values]]:
    """Yield part, metric and values of a job's mounts, network and energy on its node `number`."""
    asked = job.job
    if not asked.mounts:
        return
    is_there, noise = steps.inside(job), steps.noise(job.number, number, 5)
    for mount in asked.mounts:
        tags = {"mountpoint": mount.point, "fstype": mount.type, "source": mount.source}
        for metric, rate in (
            ("job_fs_read", mount.read), ("job_fs_write", mount.written),
            ("job_fs_reads", 0.7 * mount.calls), ("job_fs_writes", 0.3 * mount.calls),
            ("job_fs_metadata", mount.metadata),
        ):  # fmt: skip
            yield part_name(tags, MOUNT), metric, np.where(is_there, rate * noise, np.nan)
    for protocol, loopback, portion in _NETWORK:
        name = part_name({"layer": "socket", "proto": protocol, "loopback": loopback}, NETWORK)
        for metric, rate in (("job_net_received", 9 * MIB), ("job_net_sent", 7 * MIB)):
            yield name, metric, np.where(is_there, portion * rate * noise, np.nan)
    power = {key: watts * asked.cores for key, watts in _WATTS.items()}
    if asked.gpu:
        power["gpu", "active"] = 3.3 * sum(one or 0.0 for one in asked.gpu)
        power["gpu", "idle"] = 65.0 * len(asked.gpu)
    for (part, share), watts in power.items():
        name = part_name({"part": part, "share": share}, JOB_ENERGY)
        energy = np.multiply(watts, steps.times - job.start)
        yield name, "job_energy", np.where(is_there, energy, np.nan)


def _card_values(job: PlacedJob, number: int, index: int, steps: TimeSteps) -> dict[str, Values]:
    """Return the metrics of card `index` of a job on its node `number`."""
    mean, shape = job.job.gpu[index], job.job.shape
    memory = CARD_MEMORY * _GIB * job.job.gpu_memory
    noise, progress = steps.noise(job.number, number, index), steps.progress(job)
    swing = 1 + 0.3 * np.sin(steps.times / 240 + index) if mean and mean > 30 else 1.0
    used = np.clip((mean or 0.0) * _activity(shape, progress) * noise * swing, 0, 100)
    if shape == "starts-only":
        used = np.where(progress < 0.6, used, 0.0)
    held = np.where(used > 0, memory * np.clip(progress * 20, 0.2, 1), 0.6)
    found = {
        "acc_utilization": used,
        "acc_mem_used": held,
        "acc_power": 65 + 3.3 * used * noise * min(1.0, 2 * job.job.sms),
        "acc_power_limit": np.full(steps.count, 400.0),
        "acc_sm_active": used * job.job.sms,
        "acc_temperature": 34 + 0.4 * used,
        "acc_mem_share": 100 * held / (CARD_MEMORY * _GIB),
    }
    if mean is None:
        del found["acc_utilization"], found["acc_sm_active"]
        found["acc_mem_used"] = np.full(steps.count, memory)
    return found


def _idle_card(steps: TimeSteps, key: int) -> dict[str, Values]:
    noise = steps.noise(key)
    return {
        "acc_utilization": np.zeros(steps.count),
        "acc_sm_active": np.zeros(steps.count),
        "acc_power_limit": np.full(steps.count, 400.0),
        "acc_mem_used": 0.6 * noise,
        "acc_mem_share": 0.7 * noise,
        "acc_power": 62 * noise,
        "acc_temperature": 33 * noise,
    }


def _node_values(
    node: DemoNode, here: JobsHere, threads: Values, steps: TimeSteps, key: int
) -> dict[str, Values]:
    """Return the metrics of a node from those of its jobs."""
    zero = np.zeros(steps.count)

    def total(metric: str) -> Values:
        return sum((np.nan_to_num(values[metric]) for _, values in here), start=zero)

    noise = steps.noise(key)
    busy = total("job_cpu_util") / NODE_CORES
    user, system = 0.97 * busy + 0.2 * noise, 0.03 * busy + 0.3 * noise
    used = _IDLE_MEMORY * noise + total("job_mem_rss")
    size = node.memory * _GIB
    network = 3 * noise + 2.2 * busy
    fabric = np.where(busy > 20, 45e6 * busy * noise, 2e5 * noise)
    return {
        "cpu_user": user,
        "cpu_system": system,
        "cpu_iowait": 0.2 * noise,
        "cpu_idle": np.clip(100 - user - system - 0.2, 0, 100),
        "cpu_load": 0.3 * noise + threads,
        "mem_used": used,
        "mem_available": size - used,
        "mem_cached": np.minimum(18 + total("job_mem_file"), size - used),
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


def _core_values(here: JobsHere, steps: TimeSteps, key: int) -> Values:
    """Return `cpu_user` of a node, one row per core."""
    random = steps.random(key)
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
