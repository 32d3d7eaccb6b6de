"""The agent `cluster`: partitions and nodes from sinfo."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.base import Agent, make_error
from ccagent.agents.slurm.cluster import node_events, sinfo
from ccagent.agents.slurm.rest.settings import SlurmSourceSettings, check_source
from ccagent.config.duration import Duration
from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.machine.clock import timestamp
from ccagent.machine.slurm_environment import ENVIRONMENT, explain_failure
from ccagent.records.envelopes import ClusterAttributes, ClusterData, ClusterEnvelope
from ccagent.records.message import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccagent.agents.slurm.cluster.node_events import NodeState
    from ccagent.agents.slurm.rest.source import RestSource
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node
    from ccagent.records.message import Format, Record

_OUTPUT_LIMIT = 64 * 1024 * 1024


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
        self._rest: RestSource | None = None

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of Slurm's programs and controller; the query returns one number."""
        from ccagent.machine.program_checks import require_answer, require_program

        settings = self.settings
        if settings.source == "slurmrestd":
            from ccagent.agents.slurm.rest.checks import check_rest

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

        def complain(text: str) -> None:
            logger.warning("agent cluster: %s", text)

        now = node.clock.time()
        self.is_blind = False
        try:
            rest = self._open_rest(complain)
            program = self.settings.sinfo
            partitions = sinfo.parse_partitions(
                rest.partition_lines()
                if rest
                else self._ask(node, sinfo.command(program, sinfo.PARTITIONS)),
                complain,
            )
            nodes = sinfo.parse_nodes(
                rest.node_lines()
                if rest
                else self._ask(node, sinfo.command(program, sinfo.NODES, "--exact")),
                complain,
            )
            states = self._states(node, complain) if "line" in self.wanted else []
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

        yield from node_events.node_events(node, states)

    def _states(self, node: Node, complain: Callable[[str], None]) -> list[NodeState]:
        settings = self.settings
        jobs = Counter[str]()
        if rest := self._open_rest(complain):
            node_events.running_jobs(rest.running_lines(), jobs)
            return node_events.parse_nodes(rest.node_state_lines(), jobs, complain)
        command = [settings.squeue, "--all", "--noheader", "--states=RUNNING", "--format=%N"]
        node_events.running_jobs(self._ask(node, command), jobs)
        content = self._ask(node, sinfo.command(settings.sinfo, node_events.FIELDS, "--Node"))
        return node_events.parse_nodes(content, jobs, complain)

    def _open_rest(self, complain: Callable[[str], None]) -> RestSource | None:
        """Return slurmrestd as the source; None for Slurm's programs."""
        if self.settings.source == "slurmrestd" and self._rest is None:
            from ccagent.agents.slurm.rest.source import RestSource

            self._rest = RestSource(self.settings, complain)
        return self._rest

    def close(self) -> None:
        """Close the connection to slurmrestd."""
        if self._rest is not None:
            self._rest.close()

    def _ask(self, node: Node, command: list[str]) -> bytes:
        return b"".join(
            node.stream(
                command,
                time_limit=self.settings.command_time_limit.seconds,
                output_limit=_OUTPUT_LIMIT,
                environment=ENVIRONMENT,
            )
        )
