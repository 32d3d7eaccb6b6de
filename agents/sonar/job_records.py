"""Records of processes, grouped by job and user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.envelopes import NO_FLOAT, SampleJob, SampleProcess, SampleProcessGpu
from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from ccagent.agents.sonar.allocations import Allocation
    from ccagent.agents.sonar.process import Process
    from ccagent.agents.sonar.rollup import SyntheticPids
    from ccagent.envelopes import SampleGpu
    from ccagent.node import Node

ALLOCATED = "_allocated_gpus_"
"""The command of a record that lists a job's cards."""

UNKNOWN_USER = "_user_unknown"

_PID_MAX = 4_194_304
_NO_GPUS: list[SampleProcessGpu] = []


class JobRecords:
    """Makes the records of one sample after the other; those that stay the same are kept."""

    def __init__(self, *, batchless: bool, rollup: bool) -> None:
        self._batchless = batchless
        self._rollup = rollup
        self._records: dict[int, tuple[Process, float, SampleProcess]] = {}
        self._synthetic: SyntheticPids | None = None

    def make(
        self,
        node: Node,
        processes: list[Process],
        epoch: int,
        on_cards: dict[int, list[SampleProcessGpu]],
    ) -> list[SampleJob]:
        """Make the records of processes and group them by job and user.

        `on_cards`: what processes use of cards, by pid.
        """
        uptime = node.clock.uptime()
        records, self._records = self._records, {}
        batchless = self._batchless
        groups: dict[tuple[int, int, int], list[SampleProcess]] = {}
        for process in processes:
            age = uptime - process.start_time
            seconds = process.cpu_seconds
            average = (
                round(100.0 * seconds / max(age, 0.01), 1) or NO_FLOAT if seconds else NO_FLOAT
            )
            gpus = on_cards.get(process.pid, _NO_GPUS)
            known = records.get(process.pid)
            if (
                known is not None
                and known[0] is process
                and known[1] == average
                and known[2].gpus == gpus
            ):
                record = known[2]
            else:
                record = _record(process, average, gpus)
                known = (process, average, record)
            self._records[process.pid] = known
            if process.job and not batchless:
                key = (process.job, 0, process.uid)
            else:
                key = (process.process_group, epoch, process.uid)
            group = groups.get(key)
            if group is None:
                groups[key] = [record]
            else:
                group.append(record)
        if self._rollup:
            self._roll_up(node, groups)
        jobs = [
            SampleJob(job=job, user=node.user(uid), epoch=job_epoch, processes=group)
            for (job, job_epoch, uid), group in groups.items()
        ]
        # One that was there at the last sample has ended since.
        strangers = on_cards.keys() - self._records.keys() - records.keys()
        if strangers:
            from ccagent.agents.sonar.strangers import jobs_of_strangers

            jobs += jobs_of_strangers(node, strangers, on_cards, epoch)
        return jobs

    def _synthetic_pids(self, node: Node) -> SyntheticPids:
        if self._synthetic is None:
            from ccagent.agents.sonar.rollup import SyntheticPids

            self._synthetic = SyntheticPids(_pid_max(node))
        return self._synthetic

    def _roll_up(self, node: Node, groups: dict[tuple[int, int, int], list[SampleProcess]]) -> None:
        from ccagent.agents.sonar.rollup import rolled_up

        pids = self._synthetic_pids(node)
        parents = {record.ppid for group in groups.values() for record in group}
        for (job, epoch, uid), group in groups.items():
            key = f"{job}/{epoch}/{uid}"
            groups[job, epoch, uid] = rolled_up(group, parents, key, pids)

    def add_allocated(
        self,
        node: Node,
        jobs: list[SampleJob],
        allocations: list[Allocation],
        cards: list[SampleGpu],
    ) -> None:
        """Add a record to each job with cards that lists them, as a process that uses nothing."""
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

    def end_sample(self) -> None:
        """Forget the synthetic pids that this sample didn't have."""
        if self._synthetic is not None:
            self._synthetic.end_sample()


def _record(process: Process, average: float, gpus: list[SampleProcessGpu]) -> SampleProcess:
    return SampleProcess(
        resident_memory=process.resident_memory,
        virtual_memory=process.virtual_memory,
        cmd=process.command,
        pid=process.pid,
        ppid=process.ppid,
        in_container=process.in_container,
        num_threads=process.num_threads,
        cpu_avg=average,
        cpu_util=process.cpu_util or NO_FLOAT,
        cpu_time=process.cpu_time,
        data_read=process.data_read,
        data_written=process.data_written,
        data_cancelled=process.data_cancelled,
        gpus=gpus,
    )


def _pid_max(node: Node) -> int:
    """Read /proc/sys/kernel/pid_max; the largest that Linux knows if it can't be read."""
    try:
        return int(node.read("proc/sys/kernel/pid_max"))
    except (CcagentError, ValueError):
        return _PID_MAX
