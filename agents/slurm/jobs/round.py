"""One query of accounting and queue: new and changed jobs, and runs for events.

The query of accounting has a time window. sacct then shows all jobs of the window, but no steps
that ended before it. The CPU times of a job are sums over the shown steps. So the record of a job
that started before the window comes from a second query, by job id. That query also shows jobs that
a window never shows: jobs that were never eligible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.slurm.jobs import sacct, squeue
from ccagent.agents.slurm.jobs.sacct import END, START, SUBMIT, TIME_LIMIT
from ccagent.agents.slurm.values import ASKED_AT_ONCE, readable
from ccagent.errors import CcagentError, UnparsableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccagent.agents.slurm.jobs.program_source import ProgramSource
    from ccagent.agents.slurm.jobs.state import SentState
    from ccagent.agents.slurm.rest.source import RestSource
    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SlurmJob

    Key = tuple[bytes, bytes]

_MARGIN = 60
"""Seconds by which the window of sacct may start later than requested."""

_UNKNOWN_TO_ACCOUNTING = 120
"""Seconds after which a job unknown to accounting is sent with the data of the queue."""


class RoundOptions(NamedTuple):
    """The scope of a round. seconds: length of the window, up to `now`.

    repeats_events: send events again that were sent before.
    """

    now: float
    seconds: int
    uncompleted: bool
    with_gres_detail: bool
    with_events: bool
    repeats_events: bool = False


class Run(NamedTuple):
    """A run of a job that started or ended since the last round. end: 0 unless it ended."""

    job: SlurmJob
    submit: int
    begin: int
    end: int
    is_start_new: bool
    sharing: str


class _OpenJob:
    """A job, while its steps follow in the output."""

    __slots__ = ("has_new_cpu_time", "has_open_step", "is_long", "is_over", "row")

    def __init__(self, row: list[bytes], *, is_long: bool) -> None:
        self.row = row
        self.is_long = is_long
        self.is_over = sacct.has_ended(row)
        self.has_open_step = False
        self.has_new_cpu_time = False


class JobsRound:
    """One round. Read `records` once; then `runs` is complete."""

    def __init__(
        self,
        node: Node,
        source: ProgramSource | RestSource,
        options: RoundOptions,
        state: SentState,
        complain: Callable[[str], None],
    ) -> None:
        self._node = node
        self._source = source
        self._options = options
        self._state = state
        self._complain = complain
        self._parser = sacct.Parser(complain, with_gres_detail=options.with_gres_detail)
        self._begin = options.now - options.seconds
        self._long_ago = sacct.long_ago(options.now)
        self._queue: dict[Key, bytes] = {}
        self._sharing: dict[bytes, bytes] = {}
        self._live: set[bytes] = set()
        self._asked: set[Key] = set()
        self._asked_ids: set[bytes] = set()
        self._ended_in_queue: dict[Key, bytes] = {}
        self._current_runs: set[bytes] = set()
        self._started: set[bytes] = set()
        self._resized: list[tuple[bytes, Run]] = []
        self._queued_starts: dict[bytes, bytes] = {}
        self._first_starts: dict[Key, bytes] = {}
        self.runs: list[Run] = []

    def records(self) -> Iterator[SlurmJob]:
        """Yield new and changed jobs and steps; runs of one job are in order.

        Raise CcagentError if accounting does not answer.
        """
        self._read_queue()
        yield from self._look_at_window()
        self._look_at_queue()
        found: set[Key] = set()
        yield from self._look_at_ids(found)
        yield from self._finish_queue(found)
        self.runs += [run for started, run in self._resized if started not in self._current_runs]

    def _read_queue(self) -> None:
        try:
            for row in self._source.read_queue(self._node):
                if row.has_ended and sacct.moment(row.end) < self._begin:
                    continue
                self._queue[row.raw_id, row.submit] = squeue.pack(row)
                if self._options.with_events:
                    self._sharing[row.raw_id] = row.sharing
                    if not row.is_waiting:
                        self._queued_starts[row.raw_id] = row.start
        except CcagentError as error:
            self._complain(f"held and dependent jobs are missing: {error}")

    def _record(self, row: list[bytes]) -> SlurmJob | None:
        """Return the record of a row. If it can't be parsed, report it and return None."""
        try:
            return self._parser.record(row)
        except UnparsableError as error:
            self._complain(f"sacct: a row is skipped: {error}")
            return None

    def _look_at_window(self) -> Iterator[SlurmJob]:
        options, is_new = self._options, self._state.is_new
        content, has_cpu_time, raw_id = sacct.content, sacct.has_cpu_time, sacct.RAW_ID
        long_ago, digits = self._long_ago, len(self._long_ago)
        uncompleted = options.uncompleted
        job: _OpenJob | None = None
        for row in self._source.read_window(self._node, options.seconds):
            if b"." in row[raw_id]:
                end = row[END]
                if uncompleted and end < long_ago and len(end) == digits:
                    # Fast path for most steps: the part of `_is_step_due` that concerns them.
                    is_due = is_new(content(row))
                    if is_due and job is not None and has_cpu_time(row):
                        job.has_new_cpu_time = True
                else:
                    is_due = self._is_step_due(job, row)
                if is_due and (record := self._record(row)):
                    yield record
                continue
            if job is not None and self._is_job_due(job) and (record := self._record(job.row)):
                yield record
            start = sacct.moment(row[START])
            job = _OpenJob(row, is_long=0 < start < self._begin + _MARGIN)
        if job is not None and self._is_job_due(job) and (record := self._record(job.row)):
            yield record

    def _is_step_due(self, job: _OpenJob | None, row: list[bytes]) -> bool:
        """Return whether a step is due for sending, and update the state of its job."""
        state = self._state
        is_settled = sacct.is_long_over(row, self._long_ago)
        if not is_settled:
            is_settled = sacct.is_settled(row, self._options.now)
            if job is not None and job.is_over and not job.has_open_step:
                job.has_open_step = not (is_settled and sacct.has_ended(row))
        if job is not None and not self._options.uncompleted:
            if not job.is_over:
                return False
            if job.is_long:
                # The second query sends the job with all its steps.
                job.has_new_cpu_time |= not state.is_known(sacct.content(row))
                return False
        if not is_settled or not state.is_new(sacct.content(row)):
            return False
        if job is not None and sacct.has_cpu_time(row):
            job.has_new_cpu_time = True
        return True

    def _is_job_due(self, job: _OpenJob) -> bool:
        """Return whether a job is due as it is. Note a job that needs a query by id."""
        row, state = job.row, self._state
        if sacct.is_provisional(row):
            return False
        key = sacct.identify(row)
        queued = self._queue.pop(key, None)
        is_over = job.is_over
        if not is_over:
            self._live.add(key[0])
            self._take_time_limit(row, queued)
        content = sacct.content(row)
        is_known = state.is_known(content)
        is_settled = sacct.is_long_over(row, self._long_ago) or sacct.is_settled(
            row, self._options.now, has_open_step=job.has_open_step
        )
        if self._options.with_events:
            self._look_at_run(row, is_settled=is_settled)
        if not is_settled or not (is_over or self._options.uncompleted):
            return False
        if is_known and not (is_over and job.has_new_cpu_time):
            return False
        # Keep the rows of a requeued or resized job in order.
        if job.is_long or key[0] in self._asked_ids:
            state.retract(content)  # until the second query has an answer
            self._want(key)
            return False
        state.add(content)
        return True

    def _want(self, key: Key) -> None:
        self._asked.add(key)
        self._asked_ids.add(key[0])

    def _take_time_limit(self, row: list[bytes], queued: bytes | None) -> None:
        """Take a partition's time limit from the queue; accounting has it once the job runs."""
        if queued is not None and not row[TIME_LIMIT].isdigit():
            row[TIME_LIMIT] = squeue.unpack(queued).minutes or row[TIME_LIMIT]

    def _look_at_run(self, row: list[bytes], *, is_settled: bool) -> None:
        """Note a start or an end without an event so far."""
        state = self._state
        is_resized = sacct.state_of(row) == b"RESIZING"
        row = self._with_first_start(row, is_resized=is_resized)
        started, ended = sacct.run_of(row)
        if not started:
            return
        start_key, stop_key = b"start\x00" + started, b"stop\x00" + ended
        if not is_resized:
            self._current_runs.add(started)
        if not is_settled:
            # Mark as seen, because keys that no round shows are forgotten.
            state.is_known(start_key)
            state.is_known(stop_key)
            return
        is_over = bool(ended) and sacct.has_ended(row)
        if is_over and not state.until:
            # Before the first round: no events of ended runs. A resized run may continue, so its
            # start stays unknown and is sent.
            state.add(stop_key)
            if not is_resized:
                state.add(start_key)
            return
        repeats = self._options.repeats_events
        is_start_new = (state.is_new(start_key) or repeats) and started not in self._started
        is_stop_new = is_over and (state.is_new(stop_key) or repeats)
        if is_start_new or is_stop_new:
            self._started.add(started)
            self._note_run(
                row, started, is_start_new=is_start_new, is_stop_new=is_stop_new,
                is_resized=is_resized,
            )  # fmt: skip

    def _with_first_start(self, row: list[bytes], *, is_resized: bool) -> list[bytes]:
        """Return a row with the start before the job was resized: the backend knows that one.

        Some releases (26.05, not 22.05) begin the row after a resize with its time; squeue doesn't.
        """
        if row[START] == row[SUBMIT]:
            queued = self._queued_starts.get(row[sacct.RAW_ID], b"")
            is_earlier = 0 < sacct.moment(queued) < sacct.moment(row[START])
            first = self._first_starts.get(sacct.identify(row), queued if is_earlier else b"")
            if first:
                row = [*row]
                row[START] = first
        if is_resized:
            self._first_starts[row[sacct.RAW_ID], row[END]] = row[START]
        return row

    def _note_run(
        self,
        row: list[bytes],
        started: bytes,
        *,
        is_start_new: bool,
        is_stop_new: bool,
        is_resized: bool,
    ) -> None:
        try:
            job = self._parser.record(row)
        except UnparsableError:
            return  # `_record` reports the error
        run = Run(
            job,
            submit=sacct.moment(row[SUBMIT]),
            begin=sacct.moment(row[START]),
            end=sacct.moment(row[END]) if is_stop_new else 0,
            is_start_new=is_start_new,
            sharing=readable(self._sharing.get(row[sacct.RAW_ID], b"")),
        )
        if not is_resized:
            self.runs.append(run)
            return
        # A resized job continues with the same id and start, and ends only once.
        if is_start_new:
            self.runs.append(run._replace(end=0))
        if is_stop_new:
            self._resized.append((started, run._replace(is_start_new=False)))

    def _look_at_queue(self) -> None:
        """Find the jobs in the queue that need a query of accounting by id."""
        options, state = self._options, self._state
        for key, packed in self._queue.items():
            row = squeue.unpack(packed)
            if row.age(options.now) < sacct.SETTLING:
                continue
            if row.has_ended:
                ended = b"ended\x00" + b"\x00".join((*key, row.end))
                if not state.is_known(ended):
                    self._ended_in_queue[key] = ended
                    self._want(key)
            elif row.is_waiting and options.uncompleted and not state.is_known(row.content()):
                self._want(key)

    def _look_at_ids(self, found: set[Key]) -> Iterator[SlurmJob]:
        ids = sorted({readable(raw_id) for raw_id in self._asked_ids if raw_id.isdigit()})
        for begin in range(0, len(ids), ASKED_AT_ONCE):
            asked = ids[begin : begin + ASKED_AT_ONCE]
            is_wanted = False
            for row in self._source.read_ids(self._node, asked):
                if sacct.is_step(row):
                    is_missing = is_wanted and not self._options.uncompleted
                    is_missing = is_missing and self._state.is_new(sacct.content(row))
                    if is_missing and (record := self._record(row)):
                        yield record
                    continue
                key = sacct.identify(row)
                is_wanted = key in self._asked and self._is_final(row)
                if not is_wanted:
                    continue
                found.add(key)
                if key in self._queue and 0 < sacct.moment(row[END]) < self._begin - _MARGIN:
                    continue  # sent long ago: a run before the resize
                self._take_time_limit(row, self._queue.get(key))
                content = sacct.content(row)
                if key in self._queue and self._state.is_known(content):
                    continue
                self._state.add(content)
                if record := self._record(row):
                    yield record

    def _is_final(self, row: list[bytes]) -> bool:
        """Return whether a row may be sent; otherwise a later round queries it again."""
        if sacct.is_provisional(row) or not sacct.is_settled(row, self._options.now):
            return False
        return self._options.uncompleted or sacct.has_ended(row)

    def _finish_queue(self, found: set[Key]) -> Iterator[SlurmJob]:
        """Yield jobs of the queue that accounting does not know.

        Mark ended jobs as done if accounting has them or did not get them in time.
        """
        options, state = self._options, self._state
        for key, packed in self._queue.items():
            row = squeue.unpack(packed)
            if key in self._ended_in_queue:
                if key in found or row.age(options.now) > _UNKNOWN_TO_ACCOUNTING:
                    state.add(self._ended_in_queue[key])
                continue
            if key in found or row.has_ended or not options.uncompleted:
                continue
            if row.age(options.now) < _UNKNOWN_TO_ACCOUNTING or key[0] in self._live:
                continue
            content = row.content() if row.is_waiting else b"queue\x00" + b"\x00".join(row[1:4])
            if state.is_new(content):
                try:
                    yield squeue.parse_job(row, with_gres_detail=options.with_gres_detail)
                except UnparsableError as error:
                    self._complain(f"squeue: a row is skipped: {error}")
