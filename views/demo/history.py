"""A day of the simulated cluster's history in a store, and its continuation."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from ccagent.records.line_protocol.encoding import encode_tags
from ccagent.stores.metrics.line_keys import JOB_ENERGY, MOUNT, NETWORK, read_part
from ccagent.views.demo.jobs import FIRST_JOB, demo_jobs
from ccagent.views.demo.parts import part_signals
from ccagent.views.demo.placing import demo_nodes, place_jobs
from ccagent.views.demo.signals import (
    TimeSteps,
    card_signals,
    core_signals,
    idle_card,
    job_signals,
    node_signals,
    socket_signals,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from ccagent.stores.metrics.store import MetricStore
    from ccagent.views.demo.jobs import DemoJob
    from ccagent.views.demo.placing import DemoNode, PlacedJob, PlacedPart

    Values = NDArray[np.float64]

CLUSTER = "demo"
EVERY = 60
DAY = 86400


class SimulatedCluster:
    """The simulated cluster: its nodes, and the jobs of the day before `now`."""

    def __init__(self, now: int, nodes: int = 32, jobs: list[DemoJob] | None = None) -> None:
        self.now = now // EVERY * EVERY
        self.nodes = demo_nodes(nodes)
        found = demo_jobs() if jobs is None else jobs
        self.jobs = place_jobs(found, self.nodes, self.now, FIRST_JOB)

    def fill(self, store: MetricStore, seconds: int = DAY) -> int:
        """Write the history of all nodes into a store. Return the number of values."""
        steps = TimeSteps(self.now - seconds, seconds // EVERY)
        count = 0
        for number, node in enumerate(self.nodes):
            found = list(self.node_values(number, steps))
            place = (CLUSTER, node.name)
            wanted = [((*place, *path), metric) for path, metric, _ in found]
            # One group with a step of a minute, independent of the store's step for new series.
            group = store.add(wanted, steps.first, EVERY)
            for column, (_, _, values) in enumerate(found):
                present = np.flatnonzero(~np.isnan(values))
                slots = (steps.times[present] - group.start) // EVERY
                if present.size:
                    group.write_column(store.pool, column, slots, values[present])
                count += present.size
        return count

    def lines(self, time: int) -> Iterator[tuple[str, bytes]]:
        """Yield each node's name, and its values at one time in line protocol."""
        steps = TimeSteps(time, 1)
        for number, node in enumerate(self.nodes):
            found: list[str] = []
            for path, metric, values in self.node_values(number, steps):
                value = float(values[0])
                if value == value:  # noqa: PLR0124 - NaN
                    found.append(
                        f"{metric},hostname={node.name},{_tags(path)} value={value:.4f} {time}\n"
                    )
            yield node.name, "".join(found).encode()

    def node_values(
        self, number: int, steps: TimeSteps
    ) -> Iterator[tuple[tuple[str, ...], str, Values]]:
        """Yield path below the node, metric and values for each series of a node."""
        node = self.nodes[number]
        here: list[tuple[PlacedPart, Mapping[str, Values]]] = []
        threads: list[Values] = []
        cards = {
            address: idle_card(steps, 1000 * number + n) for n, address in enumerate(node.cards)
        }
        for job, index in self._jobs_on(node, steps):
            values = job_signals(job, index, steps)
            part = job.parts[index]
            here.append((part, values))
            threads.append(job.job.threads * np.nan_to_num(values["job_cpu_util"]) / 100)
            yield from _job_values(job, index, steps, values)
            for place, card in enumerate(part.cards):
                _overlay(
                    cards[node.cards[card]], card_signals(job, index, place, steps), steps, job
                )
        found = node_signals(node, here, threads, steps, number)
        for metric, each in found.items():
            yield (), metric, each
        for core, each in enumerate(core_signals(here, steps, number)):
            yield (f"hwthread{core}",), "cpu_user", each
        for socket in range(2):
            for metric, each in socket_signals(
                node, found["cpu_user"], steps, number * 2 + socket
            ).items():
                yield (f"socket{socket}",), metric, each
        for address, metrics in cards.items():
            for metric, each in metrics.items():
                yield (f"accelerator{address}",), metric, each

    def envelope(self) -> bytes:
        """Return all jobs in the format of the agent `jobs`."""
        jobs = [_slurm_job(job) for job in self.jobs]
        attributes = {"cluster": CLUSTER, "slurm_jobs": jobs}
        return json.dumps({"data": {"type": "job", "attributes": attributes}}).encode()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the start event of each job, with its hardware threads and cards."""
        for job in self.jobs:
            yield _start_event(job)

    def _jobs_on(self, node: DemoNode, steps: TimeSteps) -> list[tuple[PlacedJob, int]]:
        first, last = steps.times[0], steps.times[-1]
        return [
            (job, index)
            for job in self.jobs
            for index, part in enumerate(job.parts)
            if part.node is node and job.start <= last and (job.stop is None or job.stop > first)
        ]


def _job_values(
    job: PlacedJob, index: int, steps: TimeSteps, values: Mapping[str, Values]
) -> Iterator[tuple[tuple[str, ...], str, Values]]:
    """Yield the series of a job on a node, of its mounts and of its other parts."""
    level = f"job{job.number}"
    for metric, each in values.items():
        yield (level,), metric, each
    for name, metric, each in part_signals(job, index, steps):
        yield (level, name), metric, each


def _overlay(
    card: dict[str, Values], used: Mapping[str, Values], steps: TimeSteps, job: PlacedJob
) -> None:
    """Replace the values of an idle card during the job that has the card."""
    is_there = steps.inside(job)
    card |= {
        metric: np.where(is_there, used.get(metric, np.nan), idle) for metric, idle in card.items()
    }


def _tags(path: tuple[str, ...]) -> str:
    if not path:
        return "type=node"
    first, *parts = path
    for kind in ("hwthread", "socket", "accelerator"):
        if first.startswith(kind):
            return f"type={kind},type-id={first.removeprefix(kind)}"
    more = "".join(_part_tags(part) for part in parts)
    return f"type=node,stype=job,stype-id={first.removeprefix('job')}{more}"


def _part_tags(part: str) -> str:
    tags = (read_part(part, names) for names in (MOUNT, NETWORK, JOB_ENERGY))
    return encode_tags(next(one for one in tags if one is not None))


def _slurm_job(job: PlacedJob) -> dict[str, Any]:
    asked, count = job.job, len(job.parts)
    resources = f"cpu={asked.cores * count},mem={asked.memory * count:.0f}G,node={count}"
    if asked.gpu:
        resources += f",gres/gpu={len(asked.gpu) * count}"
    found: dict[str, Any] = {
        "job_id": job.number,
        "job_name": asked.name,
        "job_state": "RUNNING" if job.stop is None else asked.state,
        "user_name": asked.user,
        "account": asked.account,
        "partition": asked.partition,
        "start_time": _iso(job.start),
        "time_limit": int(asked.limit * 3600) + 2,
        "nodes": [part.node.name for part in job.parts],
        "allocated_resources": resources,
    }
    if job.stop is not None:
        found |= {"end_time": _iso(job.stop), "exit_code": asked.exit_code}
    return found


def _start_event(job: PlacedJob) -> dict[str, Any]:
    asked = job.job
    resources = [
        {
            "hostname": part.node.name,
            "hwthreads": list(part.cores),
            "accelerators": [part.node.cards[card] for card in part.cards],
        }
        for part in job.parts
    ]
    return {
        "jobId": job.number, "cluster": CLUSTER, "user": asked.user, "project": asked.account,
        "partition": asked.partition, "startTime": job.start,
        "shared": "none" if asked.is_exclusive else "multi_user",
        "walltime": int(asked.limit * 3600), "numHwthreads": asked.cores * len(job.parts),
        "numAcc": len(asked.gpu) * len(job.parts), "metaData": {"jobName": asked.name},
        "requestedMemory": int(asked.memory * 1024 * len(job.parts)), "resources": resources,
    }  # fmt: skip


def _iso(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
