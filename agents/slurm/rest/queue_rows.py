"""Rows of squeue from the records of /slurm/jobs, and the details that scontrol shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.agents.slurm.jobs.scontrol import NodeShare, parse_gpus
from ccagent.agents.slurm.jobs.squeue import QueueRow
from ccagent.agents.slurm.rest import forms
from ccagent.agents.slurm.rest.forms import at, number
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.agents.slurm.jobs.node_topology import NodeTopology

_MOST_DIGITS = 5
"""Maximum digits of the index of a socket or core."""

_SHARING = {"none": b"NO", "true": b"NO", "user": b"USER", "mcs": b"MCS", "topo": b"TOPO"}
"""Values of `shared` and `exclusive`, and those of squeue's OverSubscribe."""


def make_row(job: Mapping[str, Any]) -> QueueRow:
    """Return the row of squeue for a job that slurmctld has."""
    state = forms.state(job.get("job_state"))
    tres = forms.text(job.get("tres_alloc_str")) or forms.text(job.get("tres_req_str"))
    return QueueRow(
        shown_id=_shown_id(job),
        raw_id=forms.digits(job.get("job_id")),
        state=state,
        submit=forms.moment(job.get("submit_time")),
        start=forms.moment(job.get("start_time")),
        end=forms.moment(job.get("end_time")),
        user=forms.text(job.get("user_name")),
        account=forms.text(job.get("account")),
        partition=forms.text(job.get("partition")),
        time_limit=_time_limit(job.get("time_limit")),
        cpus=forms.digits(job.get("cpus")),
        node_count=forms.digits(job.get("node_count")),
        nodes=forms.text(job.get("nodes")),
        priority=forms.digits(job.get("priority")),
        reservation=forms.text(job.get("resv_name")),
        tres=tres,
        sharing=_sharing(job),
        name=forms.text(job.get("name")),
    )


def list_shares(
    job: Mapping[str, Any], topology: Mapping[str, NodeTopology], sockets: Mapping[str, int]
) -> dict[str, NodeShare]:
    """Return a running job's share of each node.

    sockets: number of sockets by node. Cores are allocated whole, and a core's threads are
    neighbours in Slurm's numbers. gres_detail has a text for each node of the job, in order.
    """
    gres = forms.words(job.get("gres_detail"))
    shares: dict[str, NodeShare] = {}
    for place, (name, cores) in enumerate(_allocated(job.get("job_resources"))):
        total, threads = topology.get(name, (0, 0))
        per_socket = total // max(1, sockets.get(name, 1))
        cpus = [
            (socket * per_socket + core) * threads + thread
            for socket, core in cores
            for thread in range(threads)  # none if the topology is unknown
        ]
        shown = gres[place] if place < len(gres) else ""
        try:
            gpus = parse_gpus(shown)
        except UnparsableError:
            gpus, shown = [], ""
        shares[name] = NodeShare(sorted(cpus), gpus, shown)
    return shares


def _allocated(resources: Any) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yield the name of each node, and the socket and index of its allocated cores.

    Until v0.0.40 sockets and cores are objects by index; later they are lists.
    """
    nodes = at(resources, "allocated_nodes") or at(resources, "nodes", "allocation")
    for node in forms.listed(nodes):
        name = at(node, "nodename") or at(node, "name")
        if isinstance(name, str):
            yield (
                name,
                [
                    (socket, core)
                    for socket, parts in _by_index(at(node, "sockets"))
                    for core, status in _by_index(at(parts, "cores"))
                    if "ALLOCATED" in _words(status)
                ],
            )


def _by_index(parts: Any) -> Iterator[tuple[int, Any]]:
    for key, part in forms.fields(parts).items():
        if key.isascii() and key.isdecimal() and len(key) <= _MOST_DIGITS:
            yield int(key), part
    for place, part in enumerate(forms.listed(parts)):
        index = number(at(part, "index"))
        yield place if index is None else index, part


def _words(status: Any) -> list[str]:
    found = at(status, "status") or status
    return [word.upper() for word in forms.words(found)]


def _shown_id(job: Mapping[str, Any]) -> bytes:
    array, task = number(job.get("array_job_id")), number(job.get("array_task_id"))
    if array:
        tasks = forms.text(job.get("array_task_string"))
        return b"%d_%d" % (array, task) if task is not None else b"%d_[%b]" % (array, tasks)
    if het := number(job.get("het_job_id")):
        return b"%d+%d" % (het, number(job.get("het_job_offset")) or 0)
    return forms.digits(job.get("job_id"))


def _time_limit(value: Any) -> bytes:
    """Return a limit in minutes as squeue prints it. In v0.0.38 null is no limit."""
    minutes = number(value)
    if minutes is not None:
        return forms.duration(minutes * 60)
    return b"UNLIMITED" if value is None or forms.is_infinite(value) else b"NOT_SET"


def _sharing(job: Mapping[str, Any]) -> bytes:
    """Return OverSubscribe; `shared` is a text or a list, from v0.0.45 `exclusive`."""
    found = [*forms.words(job.get("shared")), *forms.words(job.get("exclusive"))]
    return next((_SHARING[word] for word in found if word in _SHARING), b"OK")
