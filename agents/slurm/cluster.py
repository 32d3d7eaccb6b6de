"""The agent `cluster`: partitions and nodes from sinfo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.base import Agent, make_error
from ccagent.agents.slurm import sinfo
from ccagent.agents.slurm.rest import SlurmSourceSettings, check_source
from ccagent.config.duration import Duration
from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.machine.clock import timestamp
from ccagent.machine.slurm_environment import explain_failure
from ccagent.records.envelopes import ClusterAttributes, ClusterData, ClusterEnvelope
from ccagent.records.message import FORMATS, Format, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.slurm.jobs.program_source import ProgramSource
    from ccagent.agents.slurm.rest.source import RestSource
    from ccagent.agents.slurm.sinfo import NodeState
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node


class ClusterSettings(SlurmSourceSettings, frozen=True, kw_only=True):
    """The keys of [agents.cluster]."""

    sinfo: Annotated[str, Meta(description="the program sinfo")] = "sinfo"
    squeue: Annotated[str, Meta(description="the program squeue, for node events")] = "squeue"
    command_time_limit: Annotated[
        Duration, Meta(description="time after which a program is killed, or a request ends")
    ] = Duration("30s")


class ClusterAgent(Agent[ClusterSettings]):
    """Samples partitions and nodes of a Slurm cluster, with their states, on its controller."""

    name = "cluster"
    formats: ClassVar[frozenset[Format]] = frozenset(FORMATS)
    Settings = ClusterSettings

    def __init__(self, settings: ClusterSettings, wanted: frozenset[Format]) -> None:
        super().__init__(settings, wanted)
        check_source(self.name, settings)
        self._source: ProgramSource | RestSource | None = None

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of Slurm's programs and controller; the query returns one number."""
        from ccagent.machine.requirements import require_answer, require_program

        settings = self.settings
        if settings.source == "slurmrestd":
            from ccagent.agents.slurm.rest.client import check_rest

            yield from check_rest(settings, ("slurm",))
            return
        yield require_program(node, settings.sinfo, "all of it", is_vital=True)
        query = (settings.sinfo, "--noheader", "--format=%D nodes")
        yield require_answer(node, "controller of Slurm", query, "all of it", is_vital=True)
        if "line" in self.wanted:
            yield require_program(node, settings.squeue, "all of it", is_vital=True)

    def sample(self, node: Node) -> Iterator[Record]:
        """Query sinfo. Yield one ClusterEnvelope, with errors if Slurm does not answer.

        For line protocol, also yield events with the states of all nodes.
        """
        now = node.clock.time()
        self.is_blind = False
        states: list[NodeState] = []
        try:
            source = self._open_source()
            partitions = sinfo.parse_partitions(source.partition_lines(node), _complain)
            nodes = sinfo.parse_nodes(source.node_lines(node), _complain)
            if "line" in self.wanted:
                jobs = sinfo.running_jobs(source.running_lines(node))
                states = sinfo.parse_node_states(source.node_state_lines(node), jobs, _complain)
        except CcagentError as error:
            text = explain_failure(error)
            self.is_blind = True
            logger.error("agent cluster: %s", text)
            yield ClusterEnvelope(meta=self.metadata(), errors=[make_error(node, text)])
            return
        attributes = ClusterAttributes(
            time=timestamp(now),
            cluster=node.cluster,
            slurm=bool(nodes),
            partitions=partitions,
            nodes=nodes,
        )
        yield ClusterEnvelope(
            meta=self.metadata(), data=ClusterData(type="cluster", attributes=attributes)
        )

        yield from sinfo.node_events(node, states)

    def _open_source(self) -> ProgramSource | RestSource:
        if self._source is None:
            from ccagent.agents.slurm.jobs.program_source import SlurmPrograms, open_source

            programs = SlurmPrograms(self.settings.sinfo, self.settings.squeue)
            self._source = open_source(self.settings, programs, _complain)
        return self._source

    def close(self) -> None:
        """Close the connection to slurmrestd."""
        if self._source is not None:
            self._source.close()


def _complain(text: str) -> None:
    logger.warning("agent cluster: %s", text)
