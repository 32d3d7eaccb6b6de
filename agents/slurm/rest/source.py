"""slurmrestd as the source of jobs, partitions and nodes: the rows and lines of the programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.agents.slurm.jobs.scontrol import JobDetails, NodeShare, name_of_row, parse_gpus
from ccagent.agents.slurm.jobs.squeue import QueueRow
from ccagent.agents.slurm.rest import forms
from ccagent.agents.slurm.rest.accounting_rows import Repair, make_rows
from ccagent.agents.slurm.rest.client import RestClient
from ccagent.agents.slurm.rest.forms import at, number
from ccagent.agents.slurm.sinfo import TOPOLOGY_FRESH, NodeTopology
from ccagent.errors import CcagentError, UnparsableError
from ccagent.machine.hostlist import compact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ccagent.agents.slurm.rest import SlurmSourceSettings
    from ccagent.machine.node import Node


_MOST_DIGITS = 5
"""Maximum digits of the index of a socket or core."""

_SHARING = {"none": b"NO", "true": b"NO", "user": b"USER", "mcs": b"MCS", "topo": b"TOPO"}
"""Values of `shared` and `exclusive`, and those of squeue's OverSubscribe."""

_LIVE = frozenset({b"RUNNING", b"SUSPENDED", b"COMPLETING", b"CONFIGURING"})
_MOST_PARTS = 4096
"""Maximum sockets of a node, cores of a socket and threads of a core."""


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
    job: Mapping[str, Any], topology: Mapping[str, NodeTopology]
) -> dict[str, NodeShare]:
    """Return a running job's share of each node.

    Cores are allocated whole, and a core's threads are neighbours in Slurm's numbers. gres_detail
    has a text for each node of the job, in order.
    """
    gres = forms.words(job.get("gres_detail"))
    shares: dict[str, NodeShare] = {}
    for place, (name, cores) in enumerate(_allocated(job.get("job_resources"))):
        sockets, total, threads = topology.get(name, (1, 0, 0))
        per_socket = total // sockets
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


class RestSource:
    """Asks slurmrestd instead of sacct, squeue, scontrol and sinfo."""

    def __init__(self, settings: SlurmSourceSettings, complain: Callable[[str], None]) -> None:
        self._client = RestClient(settings, complain)
        self._complain = complain
        self._repair: Repair | None = None
        self._running: dict[str, dict[str, Any]] = {}
        self._topology: dict[str, NodeTopology] = {}
        self._topology_read_at = float("-inf")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def read_queue(self, node: Node) -> Iterator[QueueRow]:  # noqa: ARG002
        """Yield the jobs that slurmctld has, and keep the details of those that run."""
        self._running = {}
        self._repair = Repair(self._client.version())
        for job in self._client.records("slurm", "jobs"):
            row = make_row(job)
            self._repair.note(job)
            if row.state in _LIVE:
                self._running[name_of_row(row.shown_id, row.raw_id)] = {
                    key: job.get(key) for key in ("job_resources", "gres_detail")
                }
            yield row

    def read_window(self, node: Node, seconds: int) -> Iterator[list[bytes]]:
        """Yield the rows of accounting for all jobs that were eligible in the last `seconds`."""
        now = int(node.clock.time())
        query = (("start_time", f"uts{now - seconds}"), ("end_time", f"uts{now}"))
        return self._rows(query)

    def read_ids(self, node: Node, ids: Sequence[str]) -> Iterator[list[bytes]]:  # noqa: ARG002
        """Yield the rows of accounting for these jobs, with all their steps."""
        # Since Slurm 23.11 (v0.0.40) equal keys are a list, before only the last one counts.
        values = [",".join(ids)] if Repair(self._client.version()).is_needed else ids
        return self._rows([("step", value) for value in values])

    def read_details(
        self,
        node: Node,
        names: Sequence[str],
        *,
        with_script: bool,  # noqa: ARG002
    ) -> dict[str, JobDetails]:
        """Return the details of running jobs: their CPUs and cards, without text and script."""
        known = [name for name in names if name in self._running]
        topology = self.read_topology(node) if known else {}
        return {name: JobDetails("", list_shares(self._running[name], topology)) for name in known}

    def read_topology(self, node: Node) -> dict[str, NodeTopology]:
        """Return cores and threads of the nodes, at most an hour old."""
        now = node.clock.monotonic()
        if now - self._topology_read_at >= TOPOLOGY_FRESH:
            try:
                self._topology = dict(self._topologies())
                self._topology_read_at = now
            except CcagentError as error:
                self._complain(f"hwthreads of jobs on new nodes are missing: {error}")
        return self._topology

    def _topologies(self) -> Iterator[tuple[str, NodeTopology]]:
        for one in self._client.records("slurm", "nodes"):
            sockets, cores, threads = (
                number(one.get(key)) or 1 for key in ("sockets", "cores", "threads")
            )
            name = forms.text(one.get("name")).decode()
            if not 0 < min(sockets, cores, threads) <= max(sockets, cores, threads) <= _MOST_PARTS:
                self._complain(f"slurmrestd: node {name[:40]}: no possible number of cores")
                continue
            yield name, NodeTopology(sockets, sockets * cores, threads)

    def partition_lines(self, node: Node) -> bytes:  # noqa: ARG002
        """Return partitions and their nodes, as lines of sinfo: `normal|c1-[1-2]|`."""
        lines: list[bytes] = []
        for one in self._client.records("slurm", "partitions"):
            nodes = one.get("nodes")
            hosts = at(nodes, "configured") if isinstance(nodes, dict) else nodes
            lines.append(b"|".join((forms.text(one.get("name")), forms.text(hosts), b"")))
        return b"\n".join(lines)

    def node_lines(self, node: Node) -> bytes:  # noqa: ARG002
        """Return the nodes by their states, as lines of sinfo: `c1-[8-10]|down+not_responding|`."""
        groups: dict[bytes, list[str]] = {}
        for one in self._client.records("slurm", "nodes"):
            name = forms.text(one.get("name")).decode()
            try:
                compact((name,))
            except UnparsableError as error:
                self._complain(f"slurmrestd: a node is skipped: {error}")
                continue
            groups.setdefault(_states(one), []).append(name)
        return b"\n".join(
            b"|".join((",".join(compact(names)).encode(), states, b""))
            for states, names in groups.items()
        )

    def node_state_lines(self, node: Node) -> bytes:  # noqa: ARG002
        """Return the state and use of each node, with the columns of sinfo.STATE_FIELDS."""
        return b"\n".join(
            b"|".join((
                forms.text(one.get("name")),
                _states(one),
                b"%d/" % (number(one.get("alloc_cpus")) or 0),
                forms.digits(one.get("alloc_memory")),
                forms.text(one.get("gres_used")),
                b"",
            ))
            for one in self._client.records("slurm", "nodes")
        )  # fmt: skip

    def running_lines(self, node: Node) -> bytes:  # noqa: ARG002
        """Return the nodes of each running job, one job per line."""
        return b"\n".join(
            row.nodes
            for row in map(make_row, self._client.records("slurm", "jobs"))
            if row.state == b"RUNNING"
        )

    def _rows(self, query: Iterable[tuple[str, str]]) -> Iterator[list[bytes]]:
        repair = self._repair or Repair(self._client.version())
        for job in self._client.records("slurmdb", "jobs", query=query):
            yield from make_rows(job, repair)


def _states(node: dict[str, Any]) -> bytes:
    """Return the states of a node as sinfo's StateComplete: `mixed+reserved`.

    v0.0.38 has a state and a list of flags; later one list has both.
    """
    words = [*forms.words(node.get("state")), *forms.words(node.get("state_flags"))]
    return "+".join(word.lower() for word in words).encode()
