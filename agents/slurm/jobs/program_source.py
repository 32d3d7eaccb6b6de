"""Slurm's programs as the source of jobs: rows of sacct and squeue."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.slurm.jobs import sacct, squeue
from ccagent.agents.slurm.jobs.event_details import DetailsReader
from ccagent.agents.slurm.jobs.job_rows import COLUMNS
from ccagent.agents.slurm.rows import new_delimiter, split_rows
from ccagent.agents.slurm.text import readable
from ccagent.errors import UnparsableError
from ccagent.machine.slurm_environment import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ccagent.agents.slurm.jobs.node_topology import NodeTopology
    from ccagent.agents.slurm.jobs.scontrol import JobDetails
    from ccagent.agents.slurm.jobs.squeue import QueueRow
    from ccagent.machine.node import Node

_OUTPUT_LIMIT = 4 * 1024**3


class SlurmPrograms(NamedTuple):
    """The paths of Slurm's programs."""

    sacct: str
    squeue: str
    scontrol: str
    sinfo: str


class ProgramSource:
    """Queries sacct, squeue, scontrol and sinfo. time_limit: seconds for each."""

    def __init__(
        self, programs: SlurmPrograms, time_limit: float, complain: Callable[[str], None]
    ) -> None:
        self._programs = programs
        self._time_limit = time_limit
        self._complain = complain
        details = DetailsReader((programs.scontrol, programs.sinfo), time_limit, complain)
        self._details = details

    def read_queue(self, node: Node) -> Iterator[QueueRow]:
        """Yield the jobs that slurmctld has. Report and skip malformed rows."""
        delimiter = new_delimiter()
        output = self._ask(node, squeue.command(self._programs.squeue, delimiter))
        for fields in split_rows(output, delimiter.encode(), squeue.COLUMNS):
            try:
                yield squeue.parse_row(fields)
            except UnparsableError as error:
                self._complain(f"squeue: a row is skipped: {error}")

    def read_window(self, node: Node, seconds: int) -> Iterator[list[bytes]]:
        """Yield the rows of accounting for all jobs that were eligible in the last `seconds`."""
        delimiter = new_delimiter()
        command = sacct.command(self._programs.sacct, delimiter, seconds)
        return self._rows(node, delimiter, command)

    def read_ids(self, node: Node, ids: Sequence[str]) -> Iterator[list[bytes]]:
        """Yield the rows of accounting for these jobs, with all their steps."""
        delimiter = new_delimiter()
        command = sacct.command_by_id(self._programs.sacct, delimiter, ids)
        return self._rows(node, delimiter, command)

    def read_details(
        self, node: Node, names: Sequence[str], *, with_script: bool
    ) -> dict[str, JobDetails]:
        """Return the details of jobs by their names for scontrol."""
        return self._details.read_jobs(node, names, with_script=with_script)

    def read_topology(self, node: Node) -> dict[str, NodeTopology]:
        """Return cores and threads of the nodes."""
        return self._details.read_topology(node)

    def close(self) -> None:
        """Do nothing: each query is a process of its own."""

    def _rows(self, node: Node, delimiter: str, command: list[str]) -> Iterator[list[bytes]]:
        """Yield the rows of sacct; report and skip rows with a wrong number of fields.

        Raise UnparsableError if all rows are wrong: the output is no answer to the query.
        """
        is_any_right, odd = False, b""
        for row in split_rows(self._ask(node, command), delimiter.encode(), COLUMNS):
            if len(row) == COLUMNS:
                is_any_right = True
                yield row
            else:
                odd = b" ".join(row)
                self._complain(f"sacct: a row is skipped: {len(row)} fields instead of {COLUMNS}")
        if odd and not is_any_right:
            raise UnparsableError(f"sacct: no row has {COLUMNS} fields: {readable(odd[:80])!r}")

    def _ask(self, node: Node, command: list[str]) -> Iterator[bytes]:
        return node.stream(
            command,
            time_limit=self._time_limit,
            output_limit=_OUTPUT_LIMIT,
            environment=ENVIRONMENT,
        )
