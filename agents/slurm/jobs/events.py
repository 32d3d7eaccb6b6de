"""Events of jobs that start and end, for ClusterCockpit's backend.

Source: the backend's REST API `start_job` and `stop_job`. It rejects unknown fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from ccagent.agents.slurm.jobs.sacct import ENDED
from ccagent.agents.slurm.sinfo import NodeTopology, Numbering, number_hwthreads
from ccagent.agents.slurm.tres import count, count_gpus, total_memory
from ccagent.machine.hostlist import expand
from ccagent.records.points import Event

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccagent.agents.slurm.jobs.round import Run
    from ccagent.agents.slurm.jobs.scontrol import JobDetails
    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SlurmJob

_LARGEST = 480 * 1024
"""Maximum characters of an event: NATS rejects messages above 1 MiB, and escaping doubles
quotes.
"""

Sharing = Literal["none", "single_user", "multi_user"]


class Resource(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node of a job: its hardware threads and the addresses of its accelerators."""

    hostname: str
    hwthreads: tuple[int, ...] = ()
    accelerators: tuple[str, ...] = ()


class JobMetaData(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Texts about a job for people. slurm_info: output of scontrol."""

    job_name: str = ""
    slurm_info: str = ""
    job_script: str = ""


class StartJob(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A job that has started. Times in seconds since 1970. walltime: seconds.

    requested_memory: MB. smt: hardware threads per core that the job uses.
    """

    job_id: int
    cluster: str
    sub_cluster: str = ""
    partition: str = ""
    user: str
    project: str
    submit_time: int = 0
    start_time: int
    num_nodes: int
    num_hwthreads: int = msgspec.field(default=0, name="numHwthreads")
    num_acc: int = 0
    smt: int = 0
    shared: Sharing
    walltime: int = 0
    requested_memory: int = 0
    array_job_id: int = 0
    resources: tuple[Resource, ...]
    job_state: str = msgspec.field(default_factory=lambda: "running")
    meta_data: JobMetaData = JobMetaData()


class StopJob(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A job that has ended. Times in seconds since 1970."""

    job_id: int
    cluster: str
    start_time: int
    stop_time: int
    job_state: str


class Surroundings(NamedTuple):
    """Facts about the site and its nodes for job events.

    gpus: PCI addresses of the GPUs of each node, in the order of Slurm's index.
    """

    sub_cluster: str = ""
    numbering: Numbering = "linux"
    topology: Mapping[str, NodeTopology] = {}
    gpus: Mapping[str, Sequence[str]] = {}


def start_event(
    node: Node, run: Run, details: JobDetails, surroundings: Surroundings
) -> Event | None:
    """Return the event of a run that started; None for a job without nodes.

    Raise UnparsableError for too many or invalid nodes.
    """
    job = run.job
    hosts = [host for ranges in job.nodes for host in expand(ranges)]
    if not hosts:
        return None
    resources = tuple(_resource(host, details, surroundings) for host in hosts)
    threads = sum(len(one.hwthreads) for one in resources)
    is_whole = all(one.hwthreads for one in resources)
    allocated = job.allocated_resources
    payload = StartJob(
        job_id=job.job_id,
        cluster=node.cluster,
        sub_cluster=surroundings.sub_cluster,
        partition=job.partition,
        user=job.user_name,
        project=job.account,
        submit_time=run.submit,
        start_time=run.begin,
        num_nodes=len(hosts),
        num_hwthreads=threads if is_whole else count(allocated, "cpu"),
        num_acc=count_gpus(allocated),
        smt=_threads_per_core(details, surroundings),
        shared=_sharing(run.sharing),
        walltime=max(0, job.time_limit - 2),
        requested_memory=_requested_memory(job),
        array_job_id=job.array_job_id,
        resources=resources,
        meta_data=JobMetaData(
            job_name=job.job_name,
            slurm_info=details.text,
            job_script=details.script,
        ),
    )
    return _bound(Event("job", "job", _tags(node, "start_job"), payload, run.begin), payload)


def stop_event(node: Node, run: Run) -> Event:
    """Return the event of a run that ended."""
    payload = StopJob(
        job_id=run.job.job_id,
        cluster=node.cluster,
        start_time=run.begin,
        stop_time=max(run.begin, run.end),
        job_state=ENDED.get(run.job.job_state, "failed"),
    )
    return Event("job", "job", _tags(node, "stop_job"), payload, run.end)


def _resource(host: str, details: JobDetails, surroundings: Surroundings) -> Resource:
    share = details.nodes.get(host)
    if share is None:
        return Resource(host)
    topology = surroundings.topology.get(host)
    addresses = surroundings.gpus.get(host, ())
    return Resource(
        host,
        tuple(number_hwthreads(share.cpus, topology, surroundings.numbering)),
        tuple(addresses[index] for index in share.gpus if index < len(addresses)),
    )


def _threads_per_core(details: JobDetails, surroundings: Surroundings) -> int:
    """Return the maximum hardware threads per core that a job uses; 0 if unknown."""
    most = 0
    for host, share in details.nodes.items():
        topology = surroundings.topology.get(host)
        if topology is not None and share.cpus:
            cores = {cpu // max(1, topology.threads) for cpu in share.cpus}
            most = max(most, -(-len(share.cpus) // len(cores)))
    return most


def _sharing(text: str) -> Sharing:
    """Return the backend's `shared` value for OverSubscribe; without a value, multi_user."""
    if text in {"NO", "EXCLUSIVE"}:
        return "none"
    return "single_user" if text == "USER" else "multi_user"


def _requested_memory(job: SlurmJob) -> int:
    """Return the memory of all nodes in MB."""
    total = total_memory(job.requested_resources)
    return (total or job.requested_memory_per_node * max(1, job.requested_node_count)) // 1024


def _bound(event: Event, payload: StartJob) -> Event:
    """Shorten a too large event: drop the script, then the text, then details of nodes."""
    meta_data = payload.meta_data
    smaller: tuple[dict[str, Any], ...] = (
        {"meta_data": msgspec.structs.replace(meta_data, job_script="")},
        {"meta_data": JobMetaData(job_name=meta_data.job_name)},
        {"resources": tuple(Resource(one.hostname) for one in payload.resources)},
    )
    for parts in smaller:
        if len(event.encode_line()[1]) <= _LARGEST:
            break
        payload = msgspec.structs.replace(payload, **parts)
        event = Event(event.name, event.subject, event.tags, payload, event.time)
    return event


def _tags(node: Node, function: str) -> dict[str, str]:
    return {"hostname": node.hostname, "type": "node", "function": function}
