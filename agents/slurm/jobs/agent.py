"""The agent `jobs`: new and changed jobs from Slurm's accounting and queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

from ccagent.agents.base import Agent, make_error
from ccagent.agents.slurm.rest import SlurmSourceSettings, check_source
from ccagent.agents.slurm.sinfo import Numbering
from ccagent.agents.slurm.values import ASKED_AT_ONCE
from ccagent.config.duration import Duration
from ccagent.errors import CcagentError, ConfigurationError, UnparsableError
from ccagent.log import logger
from ccagent.machine.clock import timestamp
from ccagent.machine.hostlist import expand
from ccagent.machine.slurm_environment import explain_failure
from ccagent.records.envelopes import JobsAttributes, JobsData, JobsEnvelope, SlurmJob
from ccagent.records.message import FORMATS, Format, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.agents.slurm.jobs.program_source import ProgramSource
    from ccagent.agents.slurm.jobs.round import RoundOptions, Run
    from ccagent.agents.slurm.jobs.state import SentState
    from ccagent.agents.slurm.rest.source import RestSource
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node
    from ccagent.records.points import Event

_OVERLAP = 600
"""Overlap of successive queries in seconds, because slurmdbd may lag behind."""

_RUNNING = frozenset({"RUNNING", "SUSPENDED", "COMPLETING"})
_COMPLAINTS = 20
_ENVELOPE_BYTES = 1024
"""Bytes of an envelope besides its jobs, without a token."""


class JobsSettings(SlurmSourceSettings, frozen=True, kw_only=True):
    """The keys of [agents.jobs]."""

    time_limit: Annotated[
        Duration, Meta(description="time after which a running sample counts as hung")
    ] = Duration("10m")
    sacct: Annotated[str, Meta(description="the program sacct")] = "sacct"
    squeue: Annotated[str, Meta(description="the program squeue")] = "squeue"
    scontrol: Annotated[str, Meta(description="the program scontrol, for events")] = "scontrol"
    sinfo: Annotated[str, Meta(description="the program sinfo, for events")] = "sinfo"
    uncompleted: Annotated[
        bool, Meta(description="also send pending and running jobs; false: only ended jobs")
    ] = True
    max_envelope_bytes: Annotated[
        int, Meta(ge=10_000, description="bytes of an envelope; receivers refuse large ones")
    ] = 900_000
    batch_size: Annotated[
        int, Meta(ge=0, description="jobs in one envelope, with their steps; 0: no limit")
    ] = 0
    max_catch_up: Annotated[
        Duration, Meta(description="time window of the first run, and of a run after a gap")
    ] = Duration("7d")
    state_file: Annotated[
        str, Meta(description="file of sent records, kept across restarts; empty: only in memory")
    ] = ""
    resend: Annotated[
        bool, Meta(description="send all jobs of max-catch-up again at the first run")
    ] = False
    sub_cluster: Annotated[
        str, Meta(description="subCluster in job events; empty: the receiver sets it")
    ] = ""
    gpu_addresses: Annotated[
        dict[str, list[str]],
        Meta(description="for events: PCI addresses of a node's GPUs, by host range"),
    ] = {}
    hwthread_numbering: Annotated[
        Numbering,
        Meta(description="hwthread numbers in events; linux: second threads after all cores"),
    ] = "linux"
    repeat_events: Annotated[
        Duration,
        Meta(description="interval to repeat events of running and just ended jobs; 0s: never"),
    ] = Duration("0s")
    job_script: Annotated[bool, Meta(description="send the batch script with events")] = False


class JobsAgent(Agent[JobsSettings]):
    """Samples new and changed jobs and steps of a Slurm cluster, on its controller."""

    name = "jobs"
    formats: ClassVar[frozenset[Format]] = frozenset(FORMATS)
    extras: ClassVar[frozenset[str]] = Agent.extras | {"gres_detail"}
    Settings = JobsSettings

    def __init__(self, settings: JobsSettings, wanted: frozenset[Format]) -> None:
        super().__init__(settings, wanted)
        if settings.state_file and not settings.state_file.startswith("/"):
            raise ConfigurationError("agents.jobs.state-file: an absolute path is needed")
        check_source(self.name, settings)
        if settings.job_script and settings.source == "slurmrestd":
            raise ConfigurationError("agents.jobs.job-script: slurmrestd does not give scripts")
        self._gpus = _addresses_by_node(settings.gpu_addresses)
        self._state: SentState | None = None
        self._until: int | None = None
        self._last_time = 0.0
        self._complaints = 0
        self._source: ProgramSource | RestSource | None = None
        self._repeated_at = 0.0

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of Slurm's programs and accounting; the query matches no job."""
        from ccagent.machine.requirements import require_answer, require_program

        settings = self.settings
        if settings.source == "slurmrestd":
            from ccagent.agents.slurm.rest.client import check_rest

            yield from check_rest(settings, ("slurmdb", "slurm"))
            return
        yield require_program(node, settings.sacct, "all of it", is_vital=True)
        query = (settings.sacct, "--noheader", "--allocations", "--starttime=now",
                 "--format=JobIDRaw")  # fmt: skip
        yield require_answer(node, "accounting of Slurm", query, "all of it", is_vital=True)
        yield require_program(node, settings.squeue, "held and dependent jobs")
        if "line" in self.wanted or "gres_detail" in settings.extras:
            yield require_program(node, settings.scontrol, "hwthreads and cards of running jobs")
        if "line" in self.wanted:
            yield require_program(node, settings.sinfo, "hwthreads of jobs on nodes with SMT")

    def sample(self, node: Node) -> Iterator[Record]:
        """Query sacct and squeue. Yield envelopes of new and changed jobs, bounded in bytes.

        If Slurm does not answer, yield one envelope with the error. For line protocol, yield events
        of jobs that started or ended.
        """
        from ccagent.agents.slurm.jobs.round import JobsRound
        from ccagent.agents.slurm.jobs.state import JobBatch, SentRecords

        now = node.clock.time()
        state = self._open()
        state.discard()
        self._until, self._complaints, self.is_blind = None, 0, False
        is_first = not state.until
        settings = self.settings
        options = self._options(now, state)
        source = self._open_source()
        jobs = JobsRound(node, source, options, state, self._complain)
        metadata = self.metadata()
        batch = JobBatch(
            settings.max_envelope_bytes - _ENVELOPE_BYTES - len(metadata.token),
            settings.batch_size,
        )
        moment = max(now, self._last_time + 1)
        sent = 0
        sent_now = SentRecords()
        try:
            for job in self._with_cards(node, source, jobs.records()):
                if not sent_now.add(job):
                    if len(batch):
                        yield self._envelope(node, moment, batch.take())
                        sent += 1
                    moment += 1
                    sent_now.clear()
                    sent_now.add(job)
                if not batch.add(job):
                    yield self._envelope(node, moment, batch.take())
                    sent += 1
                    batch.add(job)
        except CcagentError as error:
            text = explain_failure(error)
            self.is_blind = True
            logger.error("agent jobs: %s", text)
            if len(batch):
                yield self._envelope(node, moment, batch.take())
            yield from self._events(node, jobs.runs)
            yield JobsEnvelope(meta=metadata, errors=[make_error(node, text)])
            return
        if len(batch) or (is_first and not sent):
            yield self._envelope(node, moment, batch.take())
        yield from self._events(node, jobs.runs)
        if self._complaints > _COMPLAINTS:
            logger.error("agent jobs: %d complaints in total", self._complaints)
        self._until = int(now)
        if options.repeats_events:
            self._repeated_at = now

    def _options(self, now: float, state: SentState) -> RoundOptions:
        """Return the options of the round: a window since the last round, plus the overlap."""
        from ccagent.agents.slurm.jobs.round import RoundOptions

        settings = self.settings
        reach = settings.max_catch_up.seconds
        if state.until:
            reach = min(reach, max(0.0, now - state.until))
        repeat_every = settings.repeat_events.seconds
        return RoundOptions(
            now=now,
            seconds=int(reach) + _OVERLAP,
            uncompleted=settings.uncompleted,
            with_gres_detail="gres_detail" in settings.extras,
            with_events="line" in self.wanted,
            repeats_events=0 < repeat_every <= now - self._repeated_at,
        )

    def commit_sample(self) -> None:
        """Mark queued records as sent for this process."""
        self._open().commit(self._until)

    def save_state(self) -> None:
        """Save the sent records across restarts."""
        self._open().save()

    def _open(self) -> SentState:
        if self._state is None:
            from ccagent.agents.slurm.jobs.state import SentState

            self._state = SentState(self.settings.state_file)
            if self.settings.resend:
                self._state.forget()
        return self._state

    def _events(self, node: Node, runs: list[Run]) -> list[Event]:
        """Yield the events of runs that started or ended."""
        if not runs:
            return []
        from ccagent.agents.slurm.jobs.events import Surroundings, start_event, stop_event
        from ccagent.agents.slurm.jobs.scontrol import NO_DETAILS, name_of

        surroundings = Surroundings(
            self.settings.sub_cluster, self.settings.hwthread_numbering, {}, self._gpus
        )
        source = self._open_source()
        started = [name_of(run.job) for run in runs if run.is_start_new and run.job.nodes]
        details = source.read_details(node, started, with_script=self.settings.job_script)
        if any(found.nodes for found in details.values()):
            surroundings = surroundings._replace(topology=source.read_topology(node))
        events: list[Event] = []
        for run in runs:
            try:
                if run.is_start_new:
                    known = details.get(name_of(run.job), NO_DETAILS)
                    start = start_event(node, run, known, surroundings)
                    events += [start] if start is not None else []
                if run.end:
                    events.append(stop_event(node, run))
            except CcagentError as error:
                self._complain(f"job {run.job.job_id}: no event: {error}")
        return events

    def _with_cards(
        self, node: Node, source: ProgramSource | RestSource, jobs: Iterable[SlurmJob]
    ) -> Iterator[SlurmJob]:
        """Yield jobs in order; those that run with the cards of each node in gres_detail.

        Accounting counts cards, if the site lets it. Only slurmctld knows them, while the job runs.
        """
        if "gres_detail" not in self.settings.extras:
            yield from jobs
            return
        held: list[SlurmJob] = []
        try:
            for job in jobs:
                held.append(job)
                if len(held) >= ASKED_AT_ONCE:
                    yield from self._fill_cards(node, source, held)
                    held = []
        except CcagentError:
            yield from self._fill_cards(node, source, held)
            raise
        yield from self._fill_cards(node, source, held)

    def _fill_cards(
        self, node: Node, source: ProgramSource | RestSource, jobs: list[SlurmJob]
    ) -> Iterator[SlurmJob]:
        from ccagent.agents.slurm.jobs.scontrol import NO_DETAILS, name_of

        running = [name_of(job) for job in jobs if job.job_state in _RUNNING and not job.job_step]
        details = source.read_details(node, running, with_script=False)
        for job in jobs:
            known = NO_DETAILS if job.job_step else details.get(name_of(job), NO_DETAILS)
            cards = [one.gres for one in known.nodes.values() if one.gres]
            yield msgspec.structs.replace(job, gres_detail=cards) if cards else job

    def _open_source(self) -> ProgramSource | RestSource:
        if self._source is None:
            from ccagent.agents.slurm.jobs.program_source import SlurmPrograms, open_source

            settings = self.settings
            programs = SlurmPrograms(
                settings.sinfo, settings.squeue, settings.sacct, settings.scontrol
            )
            self._source = open_source(settings, programs, self._complain)
        return self._source

    def close(self) -> None:
        """Close the connection to slurmrestd."""
        if self._source is not None:
            self._source.close()

    def _complain(self, text: str) -> None:
        self._complaints += 1
        if self._complaints <= _COMPLAINTS:
            logger.error("agent jobs: %s", text)

    def _envelope(self, node: Node, moment: float, jobs: list[SlurmJob]) -> JobsEnvelope:
        self._last_time = int(moment)
        attributes = JobsAttributes(time=timestamp(moment), cluster=node.cluster, slurm_jobs=jobs)
        return JobsEnvelope(meta=self.metadata(), data=JobsData(type="job", attributes=attributes))


def _addresses_by_node(addresses: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the PCI addresses of the GPUs of each node. Raise ConfigurationError."""
    found: dict[str, list[str]] = {}
    for hosts, of_host in addresses.items():
        try:
            found |= dict.fromkeys(expand(hosts), of_host)
        except UnparsableError as error:
            raise ConfigurationError(f"agents.jobs.gpu-addresses: {error}") from error
    return found
