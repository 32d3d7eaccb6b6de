"""Events of jobs that start and end, as ClusterCockpit's backend takes them.

Source: the backend's REST API `start_job` and `stop_job`; it refuses fields that it doesn't know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.agents.slurm.hostlist import expand
from ccagent.events import Event

if TYPE_CHECKING:
    from ccagent.envelopes import SlurmJob
    from ccagent.node import Node

_ENDED = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "out_of_memory",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
    "REQUEUED": "stopped",
    "RESIZING": "stopped",
}
"""Slurm's states and the backend's."""


class Resource(msgspec.Struct, frozen=True):
    """A node of a job."""

    hostname: str


class StartJob(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A job that has started. start_time: seconds since 1970. walltime: seconds."""

    job_id: int
    cluster: str
    sub_cluster: str = ""
    partition: str = ""
    user: str
    project: str
    start_time: int
    num_nodes: int
    walltime: int = 0
    array_job_id: int = 0
    resources: tuple[Resource, ...]
    job_state: str = msgspec.field(default_factory=lambda: "running")


class StopJob(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A job that has ended; times in seconds since 1970."""

    job_id: int
    cluster: str
    start_time: int
    stop_time: int
    job_state: str


def events_of(
    node: Node, job: SlurmJob, *, begin: int, end: int, with_start: bool, sub_cluster: str
) -> list[Event]:
    """Tell that a job has started at `begin`, if so wanted, and ended at `end` unless that is 0.

    Raises UnparsableError for nodes out of bounds.
    """
    events = [_start(node, job, begin, sub_cluster)] if with_start else []
    if end and job.job_state in _ENDED:
        events.append(_stop(node, job, begin, end))
    return events


def _start(node: Node, job: SlurmJob, begin: int, sub_cluster: str) -> Event:
    hosts = [host for ranges in job.nodes for host in expand(ranges)]
    payload = StartJob(
        job_id=job.job_id,
        cluster=node.cluster,
        sub_cluster=sub_cluster,
        partition=job.partition,
        user=job.user_name,
        project=job.account,
        start_time=begin,
        num_nodes=len(hosts),
        walltime=max(0, job.time_limit - 2) * 60,
        array_job_id=job.array_job_id,
        resources=tuple(Resource(host) for host in hosts),
    )
    return Event("job", "job", _tags(node, "start_job"), payload, begin)


def _stop(node: Node, job: SlurmJob, begin: int, end: int) -> Event:
    payload = StopJob(
        job_id=job.job_id,
        cluster=node.cluster,
        start_time=begin,
        stop_time=end,
        job_state=_ENDED[job.job_state],
    )
    return Event("job", "job", _tags(node, "stop_job"), payload, end)


def _tags(node: Node, function: str) -> dict[str, str]:
    return {"hostname": node.hostname, "type": "node", "function": function}
