"""The agent `jobs`: new and changed jobs, out of Slurm's accounting and queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agent import Agent, AgentSettings, error_object
from ccagent.agents.slurm import sacct, squeue
from ccagent.agents.slurm.batch import Batch
from ccagent.agents.slurm.environment import ENVIRONMENT, explained
from ccagent.agents.slurm.job_events import events_of
from ccagent.agents.slurm.rows import new_delimiter, split_rows
from ccagent.agents.slurm.state import SentState
from ccagent.clock import timestamp
from ccagent.duration import Duration
from ccagent.envelopes import JobsAttributes, JobsData, JobsEnvelope
from ccagent.errors import CcagentError, ConfigurationError, UnparsableError
from ccagent.log import logger
from ccagent.message import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.envelopes import SlurmJob
    from ccagent.events import Event
    from ccagent.message import Format, Record
    from ccagent.needs import Need
    from ccagent.node import Node

_OVERLAP = 600
"""Seconds that each query looks back before the last: slurmdbd may lag behind."""

_OUTPUT_LIMIT = 4 * 1024**3
_COMPLAINTS = 20


class JobsSettings(AgentSettings, frozen=True, kw_only=True):
    """The keys of [agents.jobs]."""

    time_limit: Annotated[
        Duration, Meta(description="after this long an agent counts as hanging")
    ] = Duration("10m")
    sacct: Annotated[str, Meta(description="the program sacct")] = "sacct"
    squeue: Annotated[str, Meta(description="the program squeue")] = "squeue"
    command_time_limit: Annotated[
        Duration, Meta(description="after this long a program is given up")
    ] = Duration("5m")
    batch_size: Annotated[int, Meta(ge=1, description="jobs in one envelope, with their steps")] = (
        500
    )
    max_catch_up: Annotated[
        Duration, Meta(description="how far back the first run looks, and one after a gap")
    ] = Duration("7d")
    state_file: Annotated[
        str, Meta(description="remembers what was sent; empty: only while it runs")
    ] = ""
    resend: Annotated[
        bool, Meta(description="send all jobs of max-catch-up again, at the first run")
    ] = False
    sub_cluster: Annotated[
        str, Meta(description="subCluster in the events of jobs; empty: left to the receiver")
    ] = ""


class JobsAgent(Agent[JobsSettings]):
    """Jobs of a Slurm cluster and their steps, new and changed ones; on its master."""

    name = "jobs"
    formats: ClassVar[frozenset[Format]] = frozenset(FORMATS)
    extras: ClassVar[frozenset[str]] = Agent.extras | {"gres_detail"}
    Settings = JobsSettings

    def __init__(self, settings: JobsSettings, wanted: frozenset[Format]) -> None:
        super().__init__(settings, wanted)
        if settings.state_file and not settings.state_file.startswith("/"):
            raise ConfigurationError("agents.jobs.state-file: an absolute path is needed")
        self._state: SentState | None = None
        self._until: int | None = None
        self._complaints = 0

    def needs(self) -> Iterator[Need]:
        """Accounting above all; the question asks for no job."""
        from ccagent.needs import Need

        settings = self.settings
        yield Need(settings.sacct, "all of it", is_vital=True, is_program=True)
        question = (settings.sacct, "--noheader", "--allocations", "--starttime=now",
                    "--format=JobIDRaw")  # fmt: skip
        yield Need("accounting of Slurm", "all of it", is_vital=True, question=question)
        yield Need(settings.squeue, "held and dependent jobs", is_program=True)

    def sample(self, node: Node) -> Iterator[Record]:
        """Ask sacct and squeue: a JobsEnvelope for each batch of new and changed jobs.

        One of errors if Slurm does not answer. For line protocol: events of jobs that start or end.
        """
        now = node.clock.time()
        state = self._opened()
        state.discard()
        self._until, self._complaints, self.is_blind = None, 0, False
        is_first = not state.until
        batch = Batch(self.settings.batch_size)
        sent = 0
        events: list[Event] = []
        try:
            for job in self._changed(node, state, now, events):
                if batch.is_full_for(job):
                    yield self._envelope(node, now, batch.take())
                    sent += 1
                batch.add(job)
        except CcagentError as error:
            text = explained(error)
            self.is_blind = True
            logger.error("agent jobs: %s", text)
            if len(batch):
                yield self._envelope(node, now, batch.take())
            yield from events
            yield JobsEnvelope(meta=self.metadata(), errors=[error_object(node, text)])
            return
        if len(batch) or (is_first and not sent):
            yield self._envelope(node, now, batch.take())
        yield from events
        if self._complaints > _COMPLAINTS:
            logger.error("agent jobs: %d complaints in all", self._complaints)
        self._until = int(now)

    def handed_on(self) -> None:
        """Remember what was sent."""
        self._opened().commit(self._until)

    def _opened(self) -> SentState:
        if self._state is None:
            self._state = SentState(self.settings.state_file)
            if self.settings.resend:
                self._state.forget()
        return self._state

    def _changed(
        self, node: Node, state: SentState, now: float, events: list[Event]
    ) -> Iterator[SlurmJob]:
        """Give the jobs and steps that are new or changed; add the events of those that ran."""
        accounted: set[bytes] = set()
        yield from self._accounted(node, state, now, accounted, events)
        for row in self._queued(node):
            if len(row) == squeue.COLUMNS and row[squeue.RAW_ID] in accounted:
                continue
            if state.is_new(b"\x00".join(row)):
                try:
                    yield squeue.parse_row(row)
                except UnparsableError as error:
                    self._complain(f"squeue: a row is left out: {error}")

    def _accounted(
        self, node: Node, state: SentState, now: float, accounted: set[bytes], events: list[Event]
    ) -> Iterator[SlurmJob]:
        """Give what is new of what sacct knows, and add the ids of all to `accounted`."""
        reach = self.settings.max_catch_up.seconds
        if state.until:
            reach = min(reach, max(0.0, now - state.until))
        with_gres_detail = "gres_detail" in self.settings.extras
        parser = sacct.Parser(self._complain, with_gres_detail=with_gres_detail)
        for row in self._rows(node, int(reach) + _OVERLAP):
            if sacct.is_provisional(row):
                continue
            if len(row) == len(sacct.FIELDS) and b"." not in row[sacct.RAW_ID]:
                accounted.add(row[sacct.RAW_ID])
            try:
                job = parser.record(row) if state.is_new(sacct.without_elapsed(row)) else None
                if "line" in self.wanted:
                    events += self._events(node, state, parser, row, job)
            except UnparsableError as error:
                self._complain(f"sacct: a row is left out: {error}")
                continue
            if job is not None:
                yield job

    def _events(
        self,
        node: Node,
        state: SentState,
        parser: sacct.Parser,
        row: list[bytes],
        job: SlurmJob | None,
    ) -> list[Event]:
        """Give the events that a row means and that were not sent."""
        started, ended = sacct.run_of(row)
        if not started:
            return []
        # Shown in each round, for what no round shows is forgotten.
        is_start_new = state.is_new(b"start\x00" + started)
        is_stop_new = bool(ended) and state.is_new(b"stop\x00" + ended)
        if ended and not state.until:
            return []  # history that the receiver knows already, or never will miss
        if not (is_start_new or is_stop_new):
            return []
        return events_of(
            node,
            job if job is not None else parser.record(row),
            begin=int(row[sacct.START]),
            end=int(row[sacct.END]) if ended else 0,
            with_start=is_start_new,
            sub_cluster=self.settings.sub_cluster,
        )

    def _rows(self, node: Node, seconds: int) -> Iterator[list[bytes]]:
        delimiter = new_delimiter()
        output = node.stream(
            sacct.command(self.settings.sacct, delimiter, seconds),
            time_limit=self.settings.command_time_limit.seconds,
            output_limit=_OUTPUT_LIMIT,
            environment=ENVIRONMENT,
        )
        return split_rows(output, delimiter.encode(), len(sacct.FIELDS))

    def _queued(self, node: Node) -> Iterator[list[bytes]]:
        delimiter = new_delimiter()
        output = node.stream(
            squeue.command(self.settings.squeue, delimiter),
            time_limit=self.settings.command_time_limit.seconds,
            output_limit=_OUTPUT_LIMIT,
            environment=ENVIRONMENT,
        )
        try:
            yield from split_rows(output, delimiter.encode(), squeue.COLUMNS)
        except CcagentError as error:
            self._complain(f"held and dependent jobs are left out: {error}")

    def _complain(self, text: str) -> None:
        self._complaints += 1
        if self._complaints <= _COMPLAINTS:
            logger.error("agent jobs: %s", text)

    def _envelope(self, node: Node, now: float, jobs: list[SlurmJob]) -> JobsEnvelope:
        attributes = JobsAttributes(time=timestamp(now), cluster=node.cluster, slurm_jobs=jobs)
        return JobsEnvelope(meta=self.metadata(), data=JobsData(type="job", attributes=attributes))
