"""Jobs out of Slurm's accounting: the command, and records out of its rows."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.slurm import values
from ccagent.agents.slurm.text import readable
from ccagent.agents.slurm.tres import gres_detail, memory_per_node
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
"""What is asked for. The first can't hold a line break; the last may hold anything."""

RAW_ID = FIELDS.index("JobIDRaw")
_NOTHING = SacctData()
_NO_NODES = frozenset({"", "None assigned"})
_SIZES = ("AveDiskRead", "AveDiskWrite", "AveRSS", "MaxRSS", "AveVMSize", "MaxVMSize")
_REMEMBERED = 16_384
_MOST_DIGITS = 19


class JobId(NamedTuple):
    """The forms of a JobID taken apart: `12_3.batch`, `50+1.0`, `12_[1,3]`."""

    array_job: int = 0
    array_task: int = 0
    het_job: int = 0
    het_offset: int = 0


_PLAIN = JobId()


def command(program: str, delimiter: str, seconds: int) -> list[str]:
    """Ask for all jobs that were eligible at some time of the last `seconds`."""
    return [
        program, "--allusers", "--noheader", "--parsable2", "--noconvert", "--duplicates",
        f"--delimiter={delimiter}", f"--format={','.join(FIELDS)}",
        f"--starttime=now-{seconds}seconds", "--endtime=now",
    ]  # fmt: skip


def command_by_id(program: str, delimiter: str, jobs: Sequence[str]) -> list[str]:
    """Ask for `jobs` by their raw ids, in full: sacct leaves out no step for its time."""
    return [
        program, "--allusers", "--noheader", "--parsable2", "--noconvert", "--duplicates",
        f"--delimiter={delimiter}", f"--format={','.join(FIELDS)}", f"--jobs={','.join(jobs)}",
    ]  # fmt: skip


def parse_job_id(text: str) -> JobId:
    """Parse a JobID as sacct and squeue show it. Raises UnparsableError."""
    job = text.partition(".")[0]
    try:
        if "_" in job:
            array, _, task = job.partition("_")
            number = _number(array)
            # Pending tasks are one row, `12_[1,3-5%2]`: a job of an array, but none of its tasks.
            return JobId(number, _number(task)) if task.isdecimal() else _PLAIN
        if "+" in job:
            het, _, offset = job.partition("+")
            return JobId(0, 0, _number(het), _number(offset))
        _number(job)
    except ValueError:
        raise UnparsableError(f"{text[:40]!r} is no job id") from None
    return JobId()


class Parser:
    """Makes records of rows. Values that recur, as most do, are parsed once."""

    def __init__(self, complain: Callable[[str], None], *, with_gres_detail: bool = False) -> None:
        self._complain = complain
        self._with_gres_detail = with_gres_detail
        cached = lru_cache(_REMEMBERED)
        self._word = cached(values.state)
        self._moment = cached(_moment)
        self._seconds = cached(values.seconds)
        self._uint = cached(values.uint)
        self._extended = cached(values.extended)
        self._time_limit = cached(values.time_limit)
        self._kilobytes = cached(values.kilobytes)
        self._exit_code = cached(values.exit_code)
        self._memory = cached(values.memory_per_node)
        self._nodes = cached(_nodes)

    def record(self, row: Sequence[bytes]) -> SlurmJob:
        """Make a record of the fields of a row.

        A field that can't be understood is left out and complained about. Raises UnparsableError
        if there are not the right number of fields, or no job id or state.
        """
        if len(row) != len(FIELDS):
            raise UnparsableError(f"{len(row)} fields instead of {len(FIELDS)}")
        try:
            fields = [field.decode() for field in row]
        except UnicodeDecodeError:
            fields = [readable(field) for field in row]
        try:
            return self._record(fields)
        except ValueError:
            return self._record(self._understood(fields))

    def _record(self, fields: list[str]) -> SlurmJob:
        """Raises UnparsableError, and ValueError if any other field is odd."""
        (
            shown_id, raw_id, submit, start, end, state, user, account, partition,
            elapsed, suspended, time_limit, cpus, memory, node_count, nodes,
            priority, layout, exit_code, requested, allocated, ave_cpu, min_cpu, system_cpu,
            user_cpu, disk_read, disk_write, ave_rss, max_rss, ave_vm, max_vm,
            reservation, name,
        ) = fields  # fmt: skip
        job, step = _raw_id(raw_id)
        identity = _PLAIN if shown_id == raw_id else parse_job_id(shown_id)
        word = self._state(raw_id, state)
        seconds, uint, kilobytes = self._seconds, self._uint, self._kilobytes
        requested_cpus, requested_nodes = uint(cpus), uint(node_count)
        requested_memory = self._memory(memory, requested_cpus, requested_nodes)
        if start.isdecimal() and submit.isdecimal() and int(submit) > int(start):
            # Accounting submits a resized job again, with the memory of all nodes it once had.
            requested_memory = memory_per_node(allocated) or requested_memory
        if nodes in _NO_NODES and end.isdecimal():
            start = ""  # that of a job cancelled while it was held is the time of its end
        accounted = SacctData(
            min_cpu=seconds(min_cpu),
            alloc_tres=allocated,
            ave_cpu=seconds(ave_cpu),
            ave_disk_read=kilobytes(disk_read),
            ave_disk_write=kilobytes(disk_write),
            ave_rss=kilobytes(ave_rss),
            ave_vm_size=kilobytes(ave_vm),
            elapsed_raw=uint(elapsed),
            system_cpu=seconds(system_cpu),
            user_cpu=seconds(user_cpu),
            max_rss=kilobytes(max_rss),
            max_vm_size=kilobytes(max_vm),
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
            submit_time=self._moment(submit),
            time_limit=self._time_limit(time_limit),
            partition=partition,
            reservation=reservation,
            nodes=self._nodes(nodes),
            priority=self._extended(priority),
            distribution="" if layout == "Unknown" else layout,
            requested_resources=requested,
            allocated_resources=allocated,
            gres_detail=gres_detail(allocated or requested) if self._with_gres_detail else [],
            requested_cpus=requested_cpus,
            requested_memory_per_node=requested_memory,
            requested_node_count=requested_nodes,
            start_time=self._moment(start),
            suspend_time=seconds(suspended),
            end_time=self._moment(end),
            exit_code=self._exit_code(exit_code),
            sacct=accounted if accounted != _NOTHING else None,
        )

    def _state(self, raw_id: str, text: str) -> str:
        try:
            state = self._word(text)
        except ValueError as error:
            raise UnparsableError(f"job {raw_id[:40]}: {error}") from None
        if state.detail:
            logger.debug("job %s: %s %s", raw_id, state.word, state.detail)
        return state.word

    def _understood(self, fields: list[str]) -> list[str]:
        """Empty the fields that can't be understood, and complain about each."""
        parsers: dict[str, Callable[[str], object]] = {
            **dict.fromkeys(("Submit", "Start", "End"), self._moment),
            "TimelimitRaw": self._time_limit,
            "Priority": self._extended,
            **dict.fromkeys(("ReqCPUS", "ReqNodes", "ElapsedRaw"), self._uint),
            **dict.fromkeys(
                ("Suspended", "AveCPU", "MinCPU", "SystemCPU", "UserCPU"), self._seconds
            ),
            **dict.fromkeys(_SIZES, self._kilobytes),
            "ExitCode": self._exit_code,
            "NodeList": self._nodes,
            "ReqMem": lambda text: self._memory(text, 1, 1),
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
    """Return an unsigned integer. Raises ValueError."""
    if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        raise ValueError
    return int(text)


def _raw_id(text: str) -> tuple[int, str]:
    """Split a JobIDRaw into job and step. Raises UnparsableError."""
    job, _, step = text.partition(".")
    if not (job.isascii() and job.isdecimal()) or len(job) > _MOST_DIGITS or not int(job):
        raise UnparsableError(f"{text[:40]!r} is no job id")
    return int(job), step


def _moment(text: str) -> str:
    """Give the Timestamp of seconds since 1970; empty for none."""
    seconds = values.moment(text)
    return timestamp(seconds) if seconds else ""


def _nodes(text: str) -> list[str]:
    try:
        return split(text)
    except UnparsableError as error:
        raise ValueError(str(error)) from None
