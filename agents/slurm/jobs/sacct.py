"""Jobs from Slurm's accounting: the sacct command, its rows, and the records of their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.slurm import values
from ccagent.agents.slurm.tres import gres_detail, memory_per_node
from ccagent.agents.slurm.values import Remembered, readable
from ccagent.errors import UnparsableError
from ccagent.log import logger
from ccagent.machine.clock import timestamp
from ccagent.machine.hostlist import split
from ccagent.records.envelopes import SacctData, SlurmJob

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIELDS = (
    "JobID", "JobIDRaw", "Submit", "Start", "End", "State", "User", "Account", "Partition",
    "ElapsedRaw", "Suspended", "TimelimitRaw", "ReqCPUS", "ReqMem", "ReqNodes", "NodeList",
    "Priority", "Layout", "ExitCode", "ReqTRES", "AllocTRES", "AveCPU", "MinCPU", "SystemCPU",
    "UserCPU", "AveDiskRead", "AveDiskWrite", "AveRSS", "MaxRSS", "AveVMSize", "MaxVMSize",
    "Reservation", "JobName",
)  # fmt: skip
"""Fields of sacct. The first two begin with a job id; the last may contain anything."""

COLUMNS = len(FIELDS)
RAW_ID = FIELDS.index("JobIDRaw")
SUBMIT = FIELDS.index("Submit")
START = FIELDS.index("Start")
END = FIELDS.index("End")
STATE = FIELDS.index("State")
TIME_LIMIT = FIELDS.index("TimelimitRaw")
_ACCOUNT = FIELDS.index("Account")
_PARTITION = FIELDS.index("Partition")
_ELAPSED = FIELDS.index("ElapsedRaw")
_CPUS = FIELDS.index("ReqCPUS")
_NODES = FIELDS.index("NodeList")
_SYSTEM_CPU = FIELDS.index("SystemCPU")
_USER_CPU = FIELDS.index("UserCPU")

_NOTHING = SacctData()
_NO_NODES = frozenset({"", "None assigned"})
_SIZES = ("AveDiskRead", "AveDiskWrite", "AveRSS", "MaxRSS", "AveVMSize", "MaxVMSize")
_MOST_DIGITS = 19
_MOST_DIGITS_OF_TIME = 11
_BETWEEN = b"\x00"
"""Separator of the fields of a row during decoding."""

ENDED = {
    "BOOT_FAIL": "boot_fail",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "DEADLINE": "deadline",
    "FAILED": "failed",
    "LAUNCH_FAILED": "failed",
    "NODE_FAIL": "node_fail",
    "OUT_OF_MEMORY": "out_of_memory",
    "PREEMPTED": "preempted",
    "REQUEUED": "cancelled",  # the run has ended for an unknown reason
    "RESIZING": "completed",
    "REVOKED": "cancelled",
    "TIMEOUT": "timeout",
}
"""States of an ended run, and those of ClusterCockpit's backend, which accepts no other.

A requeued or resized run continues in another row.
"""

_ENDED = frozenset(state.encode() for state in ENDED)
_NO_NODES_IN_ROW = frozenset(text.encode() for text in _NO_NODES)

SETTLING = 10
"""Seconds after an event in which slurmdbd may lack parts of a row."""

_CLOSING = 60
"""Seconds after the end of a job in which slurmdbd may still close its steps."""

_INCONSISTENT = 600
"""Seconds for which an inconsistent row is held back."""


class JobId(NamedTuple):
    """Parts of a JobID: `12_3.batch`, `50+1.0`, `12_[1,3]`."""

    array_job: int = 0
    array_task: int = 0
    het_job: int = 0
    het_offset: int = 0


_PLAIN = JobId()


def command(program: str, delimiter: str, *selection: str) -> list[str]:
    """Return the command for the jobs of a selection: of a time window, or of ids."""
    return [
        program, "--allusers", "--noheader", "--parsable", "--noconvert", "--duplicates",
        f"--delimiter={delimiter}", f"--format={','.join(FIELDS)}", *selection,
    ]  # fmt: skip


def parse_job_id(text: str) -> JobId:
    """Parse a JobID of sacct and squeue. Raise UnparsableError if it is invalid."""
    job = text.partition(".")[0]
    try:
        if "_" in job:
            array, _, task = job.partition("_")
            number = _number(array)
            # Pending tasks are one row, `12_[1,3-5%2]`, with an array job id but no task id.
            return JobId(number, _number(task)) if task.isdecimal() else _PLAIN
        if "+" in job:
            het, _, offset = job.partition("+")
            return JobId(0, 0, _number(het), _number(offset))
        _number(job)
    except ValueError as error:
        raise UnparsableError(f"{text[:40]!r} is not a job id") from error
    return JobId()


class Parser:
    """Converts rows to records. Most values recur and are parsed only once."""

    def __init__(self, complain: Callable[[str], None], *, with_gres_detail: bool = False) -> None:
        self._complain = complain
        self._with_gres_detail = with_gres_detail
        self._words = Remembered(values.state)
        self._moments = Remembered(_timestamp)
        self._seconds = Remembered(values.seconds)
        self._numbers = Remembered(values.uint)
        self._extended = Remembered(values.parse_extended)
        self._time_limits = Remembered(values.time_limit)
        self._kilobytes = Remembered(values.kilobytes)
        self._exit_codes = Remembered(values.exit_code)
        self._memory = Remembered(_memory)
        self._nodes = Remembered(_nodes)
        self._last_job = ("", 0)

    def record(self, row: Sequence[bytes]) -> SlurmJob:
        """Return the record of a row.

        An unparsable field is omitted and reported. Raise UnparsableError for a wrong number of
        fields, or without a job id or state.
        """
        if len(row) != COLUMNS:
            raise UnparsableError(f"{len(row)} fields instead of {COLUMNS}")
        fields = _decode(row)
        try:
            return self._record(fields)
        except ValueError:
            return self._record(self._understood(fields))

    def _record(self, fields: list[str]) -> SlurmJob:
        """Raise UnparsableError as `record` does, and ValueError if another field is unparsable."""
        (
            shown_id, raw_id, submit, start, end, state, user, account, partition,
            elapsed, suspended, time_limit, cpus, memory, node_count, nodes,
            priority, layout, exit_code, requested, allocated, ave_cpu, min_cpu, system_cpu,
            user_cpu, disk_read, disk_write, ave_rss, max_rss, ave_vm, max_vm,
            reservation, name,
        ) = fields  # fmt: skip
        job, step = self._raw_id(raw_id)
        identity = _PLAIN if shown_id == raw_id else parse_job_id(shown_id)
        known = self._words.get(state)
        word = known.word if known and not known.detail else self._state(raw_id, state)
        moments, seconds, kilobytes = self._moments, self._seconds, self._kilobytes
        numbers = self._numbers
        requested_cpus, requested_nodes = numbers[cpus], numbers[node_count]
        requested_memory = self._memory[memory, requested_cpus, requested_nodes]
        is_later = len(submit) > len(start) or submit > start  # rare and cheap to detect
        if is_later and start.isdecimal() and submit.isdecimal() and int(submit) > int(start):
            # Accounting stores a resized job as a new submission, with the memory of all its former
            # nodes.
            requested_memory = memory_per_node(allocated) or requested_memory
        if nodes in _NO_NODES and end.isdecimal():
            start = ""  # a job cancelled while held has its end time here
        accounted = SacctData(
            min_cpu=seconds[min_cpu],
            alloc_tres=allocated,
            ave_cpu=seconds[ave_cpu],
            ave_disk_read=kilobytes[disk_read],
            ave_disk_write=kilobytes[disk_write],
            ave_rss=kilobytes[ave_rss],
            ave_vm_size=kilobytes[ave_vm],
            elapsed_raw=numbers[elapsed],
            system_cpu=seconds[system_cpu],
            user_cpu=seconds[user_cpu],
            max_rss=kilobytes[max_rss],
            max_vm_size=kilobytes[max_vm],
        )
        return SlurmJob(
            job_id=job,
            job_step=step,
            job_name=name,
            job_state=word,
            array_job_id=identity.array_job,
            array_task_id=identity.array_task,
            het_job_id=identity.het_job,
            het_job_offset=identity.het_offset,
            user_name=user,
            account=account,
            submit_time=moments[submit],
            time_limit=self._time_limits[time_limit],
            partition=partition,
            reservation=reservation,
            nodes=self._nodes[nodes],
            priority=self._extended[priority],
            distribution="" if layout == "Unknown" else layout,
            requested_resources=requested,
            allocated_resources=allocated,
            gres_detail=gres_detail(allocated or requested) if self._with_gres_detail else [],
            requested_cpus=requested_cpus,
            requested_memory_per_node=requested_memory,
            requested_node_count=requested_nodes,
            start_time=moments[start],
            suspend_time=seconds[suspended],
            end_time=moments[end],
            exit_code=self._exit_codes[exit_code],
            sacct=accounted if accounted != _NOTHING else None,
        )

    def _raw_id(self, text: str) -> tuple[int, str]:
        """Split a JobIDRaw into job and step. Raise UnparsableError if it is invalid."""
        job, _, step = text.partition(".")
        last, number = self._last_job
        if job != last or not number:  # the steps of a job follow the row of the job
            try:
                number = _number(job)
            except ValueError:
                number = 0
            if not number:
                raise UnparsableError(f"{text[:40]!r} is not a job id")
            self._last_job = (job, number)
        return number, step

    def _state(self, raw_id: str, text: str) -> str:
        try:
            state = self._words[text]
        except ValueError as error:
            raise UnparsableError(f"job {raw_id[:40]}: {error}") from error
        if state.detail:
            logger.debug("job %s: %s %s", raw_id, state.word, state.detail)
        return state.word

    def _understood(self, fields: list[str]) -> list[str]:
        """Clear unparsable fields and report each of them."""
        parsers: dict[str, Callable[[str], object]] = {
            **dict.fromkeys(("Submit", "Start", "End"), _timestamp),
            "TimelimitRaw": values.time_limit,
            "Priority": values.parse_extended,
            **dict.fromkeys(("ReqCPUS", "ReqNodes", "ElapsedRaw"), values.uint),
            **dict.fromkeys(
                ("Suspended", "AveCPU", "MinCPU", "SystemCPU", "UserCPU"), values.seconds
            ),
            **dict.fromkeys(_SIZES, values.kilobytes),
            "ExitCode": values.exit_code,
            "NodeList": _nodes,
            "ReqMem": lambda text: values.memory_per_node(text, 1, 1),
        }
        understood = list(fields)
        for number, name in enumerate(FIELDS):
            if name in parsers:
                try:
                    parsers[name](fields[number])
                except ValueError as error:
                    self._complain(f"job {fields[RAW_ID][:40]}: {name}: {error}")
                    understood[number] = ""
        return understood


def _number(text: str) -> int:
    """Return an unsigned integer. Raise ValueError for other text."""
    if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        raise ValueError
    return int(text)


def _decode(row: Sequence[bytes]) -> list[str]:
    """Return the fields of a row as text, decoded as `readable` does."""
    try:
        fields = _BETWEEN.join(row).decode().split("\x00")
        # If a field contains the separator, decode each field separately.
        return fields if len(fields) == len(row) else [field.decode() for field in row]
    except UnicodeDecodeError:
        return [readable(field) for field in row]


def _timestamp(text: str) -> str:
    """Return the Timestamp of seconds since 1970; empty for no time."""
    seconds = values.moment(text)
    return timestamp(seconds) if seconds else ""


def _memory(requested: tuple[str, int, int]) -> int:
    """Return KB per node from ReqMem, ReqCPUS and ReqNodes. Raise ValueError if invalid."""
    return values.memory_per_node(*requested)


def _nodes(text: str) -> list[str]:
    try:
        return split(text)
    except UnparsableError as error:
        raise ValueError(str(error)) from error


def is_step(row: Sequence[bytes]) -> bool:
    """Return whether a row describes a step."""
    return b"." in row[RAW_ID]


def has_ended(row: Sequence[bytes]) -> bool:
    """Return whether the state of a row is a final state."""
    return row[STATE] in _ENDED or state_of(row) in _ENDED


def state_of(row: Sequence[bytes]) -> bytes:
    """Return the state of a row, without additions such as `by 5002` or `+`."""
    return row[STATE].partition(b" ")[0].rstrip(b"+")


def moment(text: bytes) -> int:
    """Return seconds since 1970; 0 for `Unknown`, `None` and other text."""
    return int(text) if text.isdigit() and len(text) <= _MOST_DIGITS_OF_TIME else 0


def long_ago(now: float) -> bytes:
    """Return, as text, the time before which rows are always consistent."""
    return b"%d" % (now - _INCONSISTENT)


def is_long_over(row: Sequence[bytes], before: bytes) -> bool:
    """Return whether a row ended before a time, as most have. The comparison is of text."""
    end = row[END]
    return end < before and len(end) == len(before)


def is_settled(row: Sequence[bytes], now: float, *, has_open_step: bool = False) -> bool:
    """Return whether a row is complete. Slurm writes a row in several steps.

    Up to `SETTLING` seconds after a submission, start or end, fields may be outdated. An ended job
    waits for its steps, because their CPU times are part of the job's.
    """
    start, end = moment(row[START]), moment(row[END])
    age = now - max(moment(row[SUBMIT]), start, end)
    if age > _INCONSISTENT or age < -_CLOSING:  # or the clock of Slurm is far ahead
        return True
    if age < SETTLING:
        return False
    is_over = has_ended(row)
    if is_over != bool(end):
        return False
    return not (is_over and has_open_step and age < _CLOSING)


def is_provisional(row: Sequence[bytes]) -> bool:
    """Return whether slurmdbd has only a part of a job so far.

    For seconds after its start, a job may have the name `allocation` and no partition.
    """
    return not row[_PARTITION] and b"." not in row[RAW_ID]


def identify(row: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return raw id and submission time; both identify a submission of a requeued job."""
    return row[RAW_ID], row[SUBMIT]


def run_of(row: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the identity of a job's run and of its end; empty without one."""
    if is_step(row) or not moment(row[START]) or row[_NODES] in _NO_NODES_IN_ROW:
        return b"", b""  # a job that never had nodes never started
    started = row[RAW_ID] + b"\x00" + row[START]
    return started, started + b"\x00" + row[END] if moment(row[END]) else b""


def has_cpu_time(row: Sequence[bytes]) -> bool:
    """Return whether a step has used CPU time. The CPU time of its job includes it."""
    return bool(row[_USER_CPU].strip(b"0:.") or row[_SYSTEM_CPU].strip(b"0:."))


def content(row: Sequence[bytes]) -> bytes:
    """Return the content of a row that changes when the job or step changes.

    The elapsed and suspended time are excluded. So are the CPU times of a job: they are sums over
    its steps, without steps that ended before the window.
    """
    state = row[STATE]
    rest = _ELAPSED + (2 if state == b"SUSPENDED" else 1)
    if b"." in row[RAW_ID]:
        return b"\x00".join([*row[:_ELAPSED], *row[rest:]])
    if state == b"PENDING":
        identity = (*identify(row), row[_ACCOUNT], row[_PARTITION])
        return waiting_content(*identity, row[TIME_LIMIT], row[_CPUS])
    return b"\x00".join([
        *row[:_ELAPSED], *row[rest:_SYSTEM_CPU], *row[_USER_CPU + 1 :],
    ])  # fmt: skip


def waiting_content(*fields: bytes) -> bytes:
    """Return the content of a pending job, equal for accounting and queue.

    fields: raw id, submission, account, partition, time limit in minutes, and CPUs.
    """
    return b"waiting\x00" + b"\x00".join(fields)
