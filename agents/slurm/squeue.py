"""Jobs out of the queue: those that accounting doesn't show.

Held, dependent and begin-later jobs have no eligible time, so sacct leaves them out, also when they
are cancelled; and it takes seconds until it shows a job that has just started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.slurm import values
from ccagent.agents.slurm.hostlist import split
from ccagent.agents.slurm.sacct import parse_job_id
from ccagent.agents.slurm.text import readable
from ccagent.clock import timestamp
from ccagent.envelopes import SlurmJob
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FORMAT = ("%i", "%A", "%T", "%V", "%S", "%e", "%u", "%a", "%P", "%l", "%C", "%D", "%N", "%Q", "%v",
           "%j")  # fmt: skip
"""squeue(1): job and array id, job id, state, times of submission, start and end, user, account,
partition, time limit, CPUs, nodes, node list, priority, reservation, name."""

COLUMNS = len(_FORMAT)
RAW_ID = _FORMAT.index("%A")

_NOT_ENDED = frozenset({
    "PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING",
    "STAGE_OUT", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT",
    "RESIZING",
})  # fmt: skip
_WAITING = frozenset({
    "PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT",
})  # fmt: skip
"""States in which times of start or end are what Slurm expects, not what was."""


def command(program: str, delimiter: str) -> list[str]:
    """Ask for all jobs that slurmctld has not forgotten."""
    return [
        program, "--all", "--noheader", "--states=all", f"--format={delimiter.join(_FORMAT)}",
    ]  # fmt: skip


def parse_row(row: Sequence[bytes]) -> SlurmJob:
    """Make a record of the fields of a row. Raises UnparsableError."""
    if len(row) != COLUMNS:
        raise UnparsableError(f"{len(row)} fields instead of {COLUMNS}")
    (
        shown_id, raw_id, state, submit, start, end, user, account, partition, time_limit, cpus,
        node_count, nodes, priority, reservation, name,
    ) = map(readable, row)  # fmt: skip
    identity = parse_job_id(shown_id)
    try:
        word = values.state(state).word
        number = values.uint(raw_id)
        if not number:
            raise UnparsableError(f"{raw_id[:40]!r} is no job id")
        return SlurmJob(
            job_id=number,
            job_name=name,
            job_state=word,
            array_job_id=identity.array_job,
            array_task_id=identity.array_task,
            het_job_id=identity.het_job,
            het_job_offset=identity.het_offset,
            user_name=user,
            account=account,
            submit_time=_moment(submit),
            start_time="" if word in _WAITING else _moment(start),
            end_time="" if word in _NOT_ENDED else _moment(end),
            time_limit=_minutes(time_limit),
            partition=partition,
            reservation="" if reservation == "(null)" else reservation,
            nodes=split(nodes),
            priority=values.extended(priority),
            requested_cpus=values.uint(cpus.partition("-")[0]),
            requested_node_count=values.uint(node_count.partition("-")[0]),
        )
    except ValueError as error:
        raise UnparsableError(f"job {raw_id[:40]}: {error}") from None


def _moment(text: str) -> str:
    seconds = values.moment(text)
    return timestamp(seconds) if seconds else ""


def _minutes(text: str) -> int:
    """Give the ExtendedUint of a time limit `1-00:00:00`."""
    if text in {"UNLIMITED", "INFINITE"}:
        return values.INFINITE
    if text in {"", "INVALID", "NOT_SET", "Partition_Limit", "N/A"}:
        return values.UNSET
    return values.seconds(text) // 60 + 2
