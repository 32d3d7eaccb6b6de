"""Details of start events besides accounting: CPUs, GPUs, text, script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.slurm.cluster import sinfo
from ccagent.agents.slurm.jobs import scontrol
from ccagent.agents.slurm.jobs.node_topology import FIELDS, parse_topology
from ccagent.errors import CcagentError
from ccagent.machine.slurm_environment import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccagent.agents.slurm.jobs.node_topology import NodeTopology
    from ccagent.agents.slurm.jobs.scontrol import JobDetails
    from ccagent.machine.node import Node

_ASKED_AT_ONCE = 500
_OUTPUT_LIMIT = 256 * 1024 * 1024
_FRESH = 3600.0
"""Seconds between two queries of the node topology."""

_LOCAL_TIME = {name: value for name, value in ENVIRONMENT.items() if name != "SLURM_TIME_FORMAT"}
"""The text is for people: times have Slurm's default format."""


class DetailsReader:
    """Reads job details from scontrol and topology from sinfo.

    If one fails, its details are missing.
    """

    def __init__(
        self, programs: tuple[str, str], time_limit: float, complain: Callable[[str], None]
    ) -> None:
        self._scontrol, self._sinfo = programs
        self._time_limit = time_limit
        self._complain = complain
        self._topology: dict[str, NodeTopology] = {}
        self._read_at = float("-inf")

    def read_jobs(
        self, node: Node, names: Sequence[str], *, with_script: bool
    ) -> dict[str, JobDetails]:
        """Return the details of the jobs that slurmctld knows, by their names for scontrol."""
        found: dict[str, JobDetails] = {}
        for begin in range(0, len(names), _ASKED_AT_ONCE):
            asked = names[begin : begin + _ASKED_AT_ONCE]
            token = scontrol.new_token()
            questions = scontrol.questions(asked, token, with_script=with_script)
            command = scontrol.command(self._scontrol)
            output = bytearray()
            try:
                for part in node.stream(
                    command,
                    time_limit=self._time_limit,
                    output_limit=_OUTPUT_LIMIT,
                    environment=_LOCAL_TIME,
                    standard_input=questions,
                ):
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
        if now - self._read_at >= _FRESH:
            try:
                content = b"".join(
                    node.stream(
                        sinfo.command(self._sinfo, FIELDS, "--Node"),
                        time_limit=self._time_limit,
                        output_limit=_OUTPUT_LIMIT,
                        environment=ENVIRONMENT,
                    )
                )
            except CcagentError as error:
                self._complain(f"hwthreads in events are Slurm's own numbers: {error}")
            else:
                self._topology = parse_topology(content, self._complain)
                self._read_at = now
        return self._topology
