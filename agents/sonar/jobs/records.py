"""Records of processes, grouped by job and user, and of unlisted GPU processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, structs

from ccagent.agents.sonar.process import UNKNOWN_USER, Process, make_record
from ccagent.errors import NotHereError, VanishedError
from ccagent.machine.procfs.process_files import DEFUNCT
from ccagent.machine.system_state import pid_max
from ccagent.records.envelopes import NO_FLOAT, SampleJob, SampleProcess, SampleProcessGpu

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.agents.sonar.jobs.allocations import Allocation
    from ccagent.agents.sonar.jobs.rollup import EndedStreams, SyntheticPids
    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SampleGpu

ALLOCATED = "_allocated_gpus_"
"""The command of a record that lists a job's cards."""

_CARRIED = 60.0
"""Seconds for which sonalyze repeats the last record of a stream in the sums of a job."""

_NO_GPUS: list[SampleProcessGpu] = []

GroupKey = tuple[int, int, int]
"""Job id, epoch (0 for Slurm jobs), user id."""

COMMAND = "_unknown_"


class _RecordGroup(Struct, eq=False):
    """The records of one job and user at this sample."""

    records: list[SampleProcess] = []


class _KnownProcess(Struct, frozen=True, eq=False):
    """A process and its record at the last sample.

    group: the records of this job and user at this sample. idle: the process has used neither CPU
    time nor cards; its average is unchanged.
    """

    process: Process
    average: float
    record: SampleProcess
    group: _RecordGroup
    idle: bool


class JobRecords:
    """Builds the records of each sample and reuses unchanged ones.

    as_streams: the receiver computes CPU time from differences of `cpu_time` between records of
    equal pid and command, and for the first record from `cpu_avg`. Zombies keep their command then,
    and ended processes are counters; see rollup.py.
    """

    def __init__(self, *, by_process_group: bool, rollup: bool, as_streams: bool = False) -> None:
        self._streams: EndedStreams | None = None
        self._counts_ended = self._has_sampled = False
        self._by_process_group = by_process_group
        self._rollup = rollup
        self._known: dict[int, _KnownProcess] = {}
        self._groups: dict[GroupKey, _RecordGroup] = {}
        self._epoch = 0
        self._sampled_at = 0.0
        self._synthetic: SyntheticPids | None = None
        if as_streams:
            from ccagent.agents.sonar.jobs.rollup import EndedStreams

            self._streams = EndedStreams()

    def make(
        self,
        node: Node,
        processes: list[Process],
        epoch: int,
        on_cards: dict[int, list[SampleProcessGpu]],
        *,
        counts_ended: bool = False,
    ) -> list[SampleJob]:
        """Return the records of processes, grouped by job and user.

        on_cards: use of GPUs, by pid. counts_ended: `processes` includes ended processes.
        """
        if self._synthetic is not None:
            self._synthetic.end_sample()
        if self._streams is not None:
            processes = self._streams.continue_streams(processes)
        if (epoch, counts_ended) != (self._epoch, self._counts_ended):
            self._known, self._groups = {}, {}
            self._epoch, self._counts_ended = epoch, counts_ended
        uptime = node.clock.uptime()
        before = self._known
        known: dict[int, _KnownProcess] = {}
        for group in self._groups.values():
            group.records = []
        for process in processes:
            pid = process.pid
            current = before.get(pid)
            if (
                current is None
                or current.process is not process
                or not current.idle
                or pid in on_cards
            ):
                current = self._renew(current, process, uptime, on_cards.get(pid, _NO_GPUS))
            known[pid] = current
            current.group.records.append(current.record)
        if self._streams is not None and not self._rollup and uptime - self._sampled_at <= _CARRIED:
            _close_streams([old for pid, old in before.items() if pid not in known])
        self._known, self._sampled_at, self._has_sampled = known, uptime, True
        self._groups = {key: group for key, group in self._groups.items() if group.records}
        groups = {key: group.records for key, group in self._groups.items()}
        if self._rollup:
            self._roll_up(node, groups)
        jobs = [
            SampleJob(job=job, user=node.user(uid), epoch=job_epoch, processes=group)
            for (job, job_epoch, uid), group in groups.items()
        ]
        # A process of the last sample has ended since. It is not an unlisted GPU process.
        unlisted = on_cards.keys() - known.keys() - before.keys()
        if unlisted:
            jobs += make_unlisted_jobs(node, unlisted, on_cards, epoch)
        return jobs

    def _renew(
        self,
        known: _KnownProcess | None,
        process: Process,
        uptime: float,
        gpus: list[SampleProcessGpu],
    ) -> _KnownProcess:
        """Return the record of a process with its group; build a new one after a change."""
        seconds = process.cpu_seconds
        average = NO_FLOAT
        if self._streams is not None and self._has_sampled and known is None:
            average = process.cpu_util
        elif seconds and not process.is_ended:
            age = uptime - process.start_time
            average = round(100.0 * seconds / max(age, 0.01), 1) or NO_FLOAT
        if known is not None and known.process is process:
            if known.average == average and known.record.gpus == gpus:
                return known
            group = known.group
        else:
            if process.job and not self._by_process_group:
                key = (process.job, 0, process.uid)
            else:
                key = (process.process_group, self._epoch, process.uid)
            if key not in self._groups:
                self._groups[key] = _RecordGroup()
            group = self._groups[key]
        record = make_record(process, average, gpus)
        if self._streams is not None and not process.is_ended:
            # Ended processes are counted separately; their time must not also be in the parents'.
            record = structs.replace(
                record,
                cmd=record.cmd.removesuffix(DEFUNCT),
                cpu_time=int(process.cpu_seconds) if self._counts_ended else record.cpu_time,
            )
        return _KnownProcess(process, average, record, group, idle=not seconds and not gpus)

    def _synthetic_pids(self, node: Node) -> SyntheticPids:
        if self._synthetic is None:
            from ccagent.agents.sonar.jobs.rollup import pids_of_living

            self._synthetic = pids_of_living(pid_max(node))
        return self._synthetic

    def _roll_up(self, node: Node, groups: dict[GroupKey, list[SampleProcess]]) -> None:
        from ccagent.agents.sonar.jobs.rollup import roll_up

        pids = self._synthetic_pids(node)
        parents = {record.ppid for group in groups.values() for record in group}
        for (job, epoch, uid), group in groups.items():
            key = f"{job}/{epoch}/{uid}"
            groups[job, epoch, uid] = roll_up(group, parents, key, pids)

    def add_allocated(
        self,
        node: Node,
        jobs: list[SampleJob],
        allocations: list[Allocation],
        cards: list[SampleGpu],
    ) -> None:
        """Add a record of a job's allocated cards to each job, as a process without CPU time."""
        uuids = {card.index: card.uuid for card in cards}
        pids = self._synthetic_pids(node)
        groups = {(job.job, job.user): job.processes for job in jobs if not job.epoch}
        for number, uid, allocated in allocations:
            gpus = [
                SampleProcessGpu(index=card, uuid=uuids[card])
                for card in allocated
                if card in uuids
            ]
            pid = pids.of(f"{number}/{ALLOCATED}")
            record = SampleProcess(cmd=ALLOCATED, pid=pid, gpus=gpus)
            user = node.user(uid) if uid >= 0 else UNKNOWN_USER
            group = groups.get((number, user))
            if group is None:
                jobs.append(SampleJob(job=number, user=user, epoch=0, processes=[record]))
            else:
                group.append(record)


def _close_streams(ended: list[_KnownProcess]) -> None:
    """Add a last record without use for each ended process of a job that goes on.

    Otherwise sonalyze counts the use of its last record again at each sample of the next minute.
    """
    for old in ended:
        if old.process.job and not old.process.is_ended and old.group.records:
            record = structs.replace(
                old.record,
                resident_memory=0,
                virtual_memory=0,
                num_threads=0,
                cpu_avg=NO_FLOAT,
                cpu_util=NO_FLOAT,
                gpus=_NO_GPUS,
            )
            old.group.records.append(record)


def make_unlisted_jobs(
    node: Node, pids: Iterable[int], on_cards: dict[int, list[SampleProcessGpu]], epoch: int
) -> list[SampleJob]:
    """Return one job for each unlisted GPU process, to show its use of a card.

    A process in /proc that is not in the sample was excluded by the configuration; omit it.
    """
    jobs: list[SampleJob] = []
    for pid in sorted(pids):
        try:
            node.owner(f"proc/{pid}")
        except (NotHereError, VanishedError):
            record = SampleProcess(cmd=COMMAND, pid=pid, gpus=on_cards[pid])
            jobs.append(SampleJob(job=pid, user=UNKNOWN_USER, epoch=epoch, processes=[record]))
    return jobs
