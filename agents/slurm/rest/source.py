"""slurmrestd as the source of jobs, partitions and nodes: the rows and lines of the programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.agents.slurm.jobs.node_topology import NodeTopology
from ccagent.agents.slurm.jobs.scontrol import JobDetails, name_of_row
from ccagent.agents.slurm.rest import forms
from ccagent.agents.slurm.rest.accounting_rows import Repair, make_rows
from ccagent.agents.slurm.rest.client import RestClient
from ccagent.agents.slurm.rest.forms import at, number
from ccagent.agents.slurm.rest.queue_rows import list_shares, make_row
from ccagent.errors import CcagentError, UnparsableError
from ccagent.machine.hostlist import compact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ccagent.agents.slurm.jobs.squeue import QueueRow
    from ccagent.agents.slurm.rest.settings import SlurmSourceSettings
    from ccagent.machine.node import Node

_LIVE = frozenset({b"RUNNING", b"SUSPENDED", b"COMPLETING", b"CONFIGURING"})
_MOST_PARTS = 4096
"""Maximum sockets of a node, cores of a socket and threads of a core."""


class RestSource:
    """Asks slurmrestd instead of sacct, squeue, scontrol and sinfo."""

    def __init__(self, settings: SlurmSourceSettings, complain: Callable[[str], None]) -> None:
        self._client = RestClient(settings, complain)
        self._complain = complain
        self._repair: Repair | None = None
        self._running: dict[str, dict[str, Any]] = {}
        self._topology: dict[str, NodeTopology] = {}
        self._sockets: dict[str, int] = {}

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def read_queue(self, node: Node) -> Iterator[QueueRow]:
        """Yield the jobs that slurmctld has, and keep the details of those that run."""
        del node
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
        query = {"start_time": f"uts{now - seconds}", "end_time": f"uts{now}"}
        return self._rows("jobs", query)

    def read_ids(self, node: Node, ids: Sequence[str]) -> Iterator[list[bytes]]:
        """Yield the rows of accounting for these jobs, with all their steps."""
        del node
        return self._rows("jobs", {"step": ",".join(ids)})

    def read_details(
        self, node: Node, names: Sequence[str], *, with_script: bool
    ) -> dict[str, JobDetails]:
        """Return the details of running jobs: their CPUs and cards, without text and script."""
        del with_script
        topology = self.read_topology(node)
        return {
            name: JobDetails("", list_shares(self._running[name], topology, self._sockets))
            for name in names
            if name in self._running
        }

    def read_topology(self, node: Node) -> dict[str, NodeTopology]:
        """Return cores and threads of the nodes; empty if slurmrestd does not answer."""
        del node
        if not self._topology:
            try:
                for one in self._client.records("slurm", "nodes"):
                    sockets, cores, threads = (
                        number(one.get(key)) or 1 for key in ("sockets", "cores", "threads")
                    )
                    name = forms.text(one.get("name")).decode()
                    if max(sockets, cores, threads) > _MOST_PARTS:
                        self._complain(f"slurmrestd: node {name[:40]}: too many cores")
                        continue
                    self._topology[name] = NodeTopology(sockets * cores, threads)
                    self._sockets[name] = sockets
            except CcagentError as error:
                self._complain(f"hwthreads of running jobs are missing: {error}")
        return self._topology

    def partition_lines(self) -> bytes:
        """Return partitions and their nodes, as lines of sinfo: `normal|c1-[1-2]|`."""
        lines: list[bytes] = []
        for one in self._client.records("slurm", "partitions"):
            nodes = one.get("nodes")
            hosts = at(nodes, "configured") if isinstance(nodes, dict) else nodes
            lines.append(b"|".join((forms.text(one.get("name")), forms.text(hosts), b"")))
        return b"\n".join(lines)

    def node_lines(self) -> bytes:
        """Return the nodes by their states, as lines of sinfo: `c1-[8-10]|down+not_responding|`."""
        groups: dict[bytes, list[str]] = {}
        for one in self._client.records("slurm", "nodes"):
            groups.setdefault(_states(one), []).append(forms.text(one.get("name")).decode())
        lines: list[bytes] = []
        for states, names in groups.items():
            try:
                hosts = ",".join(compact(names))
            except UnparsableError as error:
                self._complain(f"slurmrestd: nodes: {error}")
                continue
            lines.append(b"|".join((hosts.encode(), states, b"")))
        return b"\n".join(lines)

    def node_state_lines(self) -> bytes:
        """Return the state and use of each node, with the columns of node_events.FIELDS."""
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

    def running_lines(self) -> bytes:
        """Return the nodes of each running job, one job per line."""
        return b"\n".join(
            row.nodes
            for row in map(make_row, self._client.records("slurm", "jobs"))
            if row.state == b"RUNNING"
        )

    def _rows(self, name: str, query: dict[str, str]) -> Iterator[list[bytes]]:
        repair = self._repair or Repair(self._client.version())
        for job in self._client.records("slurmdb", name, query=query):
            yield from make_rows(job, repair)


def _states(node: dict[str, Any]) -> bytes:
    """Return the states of a node as sinfo's StateComplete: `mixed+reserved`.

    v0.0.38 has a state and a list of flags; later one list has both.
    """
    words = [*forms.words(node.get("state")), *forms.words(node.get("state_flags"))]
    return "+".join(word.lower() for word in words).encode()
