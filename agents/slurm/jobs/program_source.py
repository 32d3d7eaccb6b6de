"""Slurm's programs as the source of jobs, partitions and nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.slurm import sinfo
from ccagent.agents.slurm.jobs import sacct, scontrol, squeue
from ccagent.agents.slurm.values import ASKED_AT_ONCE, new_delimiter, readable, split_rows
from ccagent.errors import CcagentError, UnparsableError
from ccagent.machine.slurm_environment import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ccagent.agents.slurm.jobs.scontrol import JobDetails
    from ccagent.agents.slurm.jobs.squeue import QueueRow
    from ccagent.agents.slurm.rest import SlurmSourceSettings
    from ccagent.agents.slurm.rest.source import RestSource
    from ccagent.agents.slurm.sinfo import NodeTopology
    from ccagent.machine.node import Node

_OUTPUT_LIMIT = 4 * 1024**3
_LOCAL_TIME = {name: value for name, value in ENVIRONMENT.items() if name != "SLURM_TIME_FORMAT"}
"""The text of scontrol is for people: times have Slurm's default format."""


class SlurmPrograms(NamedTuple):
    """The paths of Slurm's programs."""

    sinfo: str
    squeue: str
    sacct: str = ""
    scontrol: str = ""


def open_source(
    settings: SlurmSourceSettings, programs: SlurmPrograms, complain: Callable[[str], None]
) -> ProgramSource | RestSource:
    """Return the source that the settings name. Both have the same methods and return the same.

    Methods raise CcagentError if Slurm does not answer. Details and topology are then missing.
    """
    if settings.source == "slurmrestd":
        from ccagent.agents.slurm.rest.source import RestSource

        return RestSource(settings, complain)
    return ProgramSource(programs, settings.command_time_limit.seconds, complain)


class ProgramSource:
    """Queries sacct, squeue, scontrol and sinfo. time_limit: seconds for each."""

    def __init__(
        self, programs: SlurmPrograms, time_limit: float, complain: Callable[[str], None]
    ) -> None:
        self._programs = programs
        self._time_limit = time_limit
        self._complain = complain
        self._topology: dict[str, NodeTopology] = {}
        self._topology_read_at = float("-inf")

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
        """Yield the rows of accounting for all jobs that were eligible in the last `seconds`.

        They have the columns and texts of sacct, the steps after their job.
        """
        return self._rows(node, f"--starttime=now-{seconds}seconds", "--endtime=now")

    def read_ids(self, node: Node, ids: Sequence[str]) -> Iterator[list[bytes]]:
        """Yield the rows of accounting for these jobs, with all their steps."""
        return self._rows(node, f"--jobs={','.join(ids)}")

    def read_details(
        self, node: Node, names: Sequence[str], *, with_script: bool
    ) -> dict[str, JobDetails]:
        """Return the details of the jobs that slurmctld knows, by their names for scontrol."""
        found: dict[str, JobDetails] = {}
        for begin in range(0, len(names), ASKED_AT_ONCE):
            asked = names[begin : begin + ASKED_AT_ONCE]
            token = scontrol.new_token()
            questions = scontrol.questions(asked, token, with_script=with_script)
            command = [self._programs.scontrol, "--details"]
            output = bytearray()
            try:
                for part in self._ask(node, command, _LOCAL_TIME, questions):
                    output += part
            except CcagentError as error:
                # scontrol exits with an error if slurmctld has forgotten one of the jobs.
                if token.encode() not in output:
                    self._complain(f"hwthreads and cards of running jobs are missing: {error}")
                    break
            found |= scontrol.parse(bytes(output), asked, token)
        return found

    def read_topology(self, node: Node) -> dict[str, NodeTopology]:
        """Return cores and threads of the nodes, at most an hour old."""
        now = node.clock.monotonic()
        if now - self._topology_read_at >= sinfo.TOPOLOGY_FRESH:
            try:
                content = self._sinfo(node, sinfo.TOPOLOGY_FIELDS, "--Node")
            except CcagentError as error:
                self._complain(f"hwthreads in events are Slurm's own numbers: {error}")
            else:
                self._topology = sinfo.parse_topology(content, self._complain)
                self._topology_read_at = now
        return self._topology

    def partition_lines(self, node: Node) -> bytes:
        """Return partitions and their nodes, with the columns of sinfo.PARTITIONS."""
        return self._sinfo(node, sinfo.PARTITIONS)

    def node_lines(self, node: Node) -> bytes:
        """Return the nodes by their states, with the columns of sinfo.NODES."""
        return self._sinfo(node, sinfo.NODES, "--exact")

    def node_state_lines(self, node: Node) -> bytes:
        """Return the state and use of each node, with the columns of sinfo.STATE_FIELDS."""
        return self._sinfo(node, sinfo.STATE_FIELDS, "--Node")

    def running_lines(self, node: Node) -> bytes:
        """Return the nodes of each running job, one job per line."""
        command = [self._programs.squeue, "--all", "--noheader", "--states=RUNNING", "--format=%N"]
        return b"".join(self._ask(node, command))

    def close(self) -> None:
        """Do nothing: each query is a process of its own."""

    def _rows(self, node: Node, *selection: str) -> Iterator[list[bytes]]:
        """Yield the rows of sacct; report and skip rows with a wrong number of fields.

        Raise UnparsableError if all rows are wrong: the output is no answer to the query.
        """
        delimiter = new_delimiter()
        command = sacct.command(self._programs.sacct, delimiter, *selection)
        is_any_right, odd = False, ""
        for row in split_rows(self._ask(node, command), delimiter.encode(), sacct.COLUMNS):
            if len(row) == sacct.COLUMNS:
                is_any_right = True
                yield row
            else:
                odd = readable(row[0][:80])
                self._complain(
                    "sacct: a row is skipped: expected a job id and"
                    f" {sacct.COLUMNS - 1} more fields, found {odd!r}"
                )
        if odd and not is_any_right:
            raise UnparsableError(f"sacct: no row has {sacct.COLUMNS} fields: {odd!r}")

    def _sinfo(self, node: Node, fields: str, *options: str) -> bytes:
        """Return `fields` of all partitions, including hidden ones."""
        command = [
            self._programs.sinfo, "--noheader", "--all", *options, f"--Format={fields}",
        ]  # fmt: skip
        return b"".join(self._ask(node, command))

    def _ask(
        self,
        node: Node,
        command: list[str],
        environment: dict[str, str] = ENVIRONMENT,
        questions: bytes = b"",
    ) -> Iterator[bytes]:
        return node.stream(
            command,
            time_limit=self._time_limit,
            output_limit=_OUTPUT_LIMIT,
            environment=environment,
            standard_input=questions,
        )
