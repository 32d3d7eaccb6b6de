"""Jobs from the queue, for jobs that accounting shows late or never.

Held, dependent and begin-later jobs have no eligible time. sacct with a time window omits them,
even after they are cancelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.slurm import values
from ccagent.agents.slurm.jobs.sacct import ENDED, moment, parse_job_id, waiting_content
from ccagent.agents.slurm.tres import gres_detail, memory_per_node
from ccagent.agents.slurm.values import readable
from ccagent.errors import UnparsableError
from ccagent.machine.clock import timestamp
from ccagent.machine.hostlist import split
from ccagent.records.envelopes import SlurmJob

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIELDS = ("JobArrayID", "JobID", "State", "SubmitTime", "StartTime", "EndTime", "UserName",
           "Account", "Partition", "TimeLimit", "NumCPUs", "NumNodes", "NodeList", "PriorityLong",
           "Reservation", "tres-alloc", "OverSubscribe", "Exclusive", "Name")  # fmt: skip
"""Fields of squeue(1) --Format. For a pending job, tres-alloc has the requested resources.

Exclusive is of Slurm 26.05; earlier releases complain of it and leave it empty.
"""

COLUMNS = len(_FIELDS)

_SHARING = {b"NO": b"OK", b"NODE": b"NO"}
"""Values of Exclusive, and those of OverSubscribe before Slurm 26.05, unless they are equal.

In 26.05 OverSubscribe is NO for any job that does not oversubscribe CPUs.
"""

_WAITING = frozenset({
    "PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT",
    "EXPEDITING",
})  # fmt: skip
"""States in which start and end times are Slurm's expectations."""


class QueueRow(NamedTuple):
    """A job in the queue, with the texts that squeue prints."""

    shown_id: bytes
    raw_id: bytes
    state: bytes
    submit: bytes
    start: bytes
    end: bytes
    user: bytes
    account: bytes
    partition: bytes
    time_limit: bytes
    cpus: bytes
    node_count: bytes
    nodes: bytes
    priority: bytes
    reservation: bytes
    tres: bytes
    sharing: bytes
    name: bytes

    @property
    def is_waiting(self) -> bool:
        """True for a job that has not started or will start again."""
        return self.state.decode("ascii", "replace") in _WAITING

    @property
    def has_ended(self) -> bool:
        """True for an ended job that slurmctld still has."""
        return self.state.decode("ascii", "replace") in ENDED and not self.is_waiting

    @property
    def minutes(self) -> bytes:
        """The time limit in minutes, as sacct prints it."""
        text = readable(self.time_limit)
        if text in {"UNLIMITED", "INFINITE"}:
            return b"UNLIMITED"
        try:
            return b"%d" % (values.seconds(text) // 60)
        except ValueError:
            return b""

    def content(self) -> bytes:
        """Return the content of a pending job for comparison; equal to that of its sacct row."""
        return waiting_content(
            self.raw_id, self.submit, self.account, self.partition, self.minutes, self.cpus
        )

    def age(self, now: float) -> float:
        """Return the seconds since the last submission, start or end of the job."""
        if self.is_waiting:
            return now - moment(self.submit)
        return now - (moment(self.end) if self.has_ended else moment(self.start))


def command(program: str, delimiter: str) -> list[str]:
    """Return the command for all jobs that slurmctld has."""
    form = ",".join(f"{name}:{delimiter}" for name in _FIELDS)
    return [program, "--all", "--noheader", "--states=all", f"--Format={form}"]


def parse_row(fields: Sequence[bytes]) -> QueueRow:
    """Return the fields as a row. Raise UnparsableError for a wrong number of fields."""
    if len(fields) != COLUMNS:
        odd = readable(fields[0][:80])
        raise UnparsableError(f"expected a job id and {COLUMNS - 1} more fields, found {odd!r}")
    *others, sharing, exclusive, name = fields
    if exclusive:
        sharing = _SHARING.get(exclusive, exclusive)
    return QueueRow._make((*others, sharing, name))


def pack(row: QueueRow) -> bytes:
    """Return a row as one bytes object; many rows are kept for a while."""
    return b"\x00".join(row)


def unpack(packed: bytes) -> QueueRow:
    """Return the row from the result of `pack`."""
    return QueueRow._make(packed.split(b"\x00", len(QueueRow._fields) - 1))


def parse_job(row: QueueRow, *, with_gres_detail: bool = False) -> SlurmJob:
    """Return the record of a row. Raise UnparsableError if it is invalid."""
    identity = parse_job_id(readable(row.shown_id))
    tres = ",".join(sorted(readable(row.tres).split(",")))  # the order of sacct
    reservation = readable(row.reservation)
    try:
        word = values.state(readable(row.state)).word
        number = values.uint(readable(row.raw_id))
        if not number:
            raise UnparsableError(f"{readable(row.raw_id)[:40]!r} is not a job id")
        return SlurmJob(
            job_id=number,
            job_name=readable(row.name),
            job_state=word,
            array_job_id=identity.array_job,
            array_task_id=identity.array_task,
            het_job_id=identity.het_job,
            het_job_offset=identity.het_offset,
            user_name=readable(row.user),
            account=readable(row.account),
            submit_time=_timestamp(row.submit),
            start_time="" if word in _WAITING else _timestamp(row.start),
            time_limit=values.time_limit(row.minutes.decode()),
            partition=readable(row.partition),
            reservation="" if reservation == "(null)" else reservation,
            nodes=split(readable(row.nodes)),
            priority=values.parse_extended(readable(row.priority)),
            requested_resources=tres if word in _WAITING else "",
            allocated_resources="" if word in _WAITING else tres,
            gres_detail=gres_detail(tres) if with_gres_detail else [],
            requested_cpus=values.uint(readable(row.cpus).partition("-")[0]),
            requested_memory_per_node=memory_per_node(tres),
            requested_node_count=values.uint(readable(row.node_count).partition("-")[0]),
        )
    except ValueError as error:
        raise UnparsableError(f"job {readable(row.raw_id)[:40]}: {error}") from error


def _timestamp(text: bytes) -> str:
    seconds = moment(text)
    return timestamp(seconds) if seconds else ""
