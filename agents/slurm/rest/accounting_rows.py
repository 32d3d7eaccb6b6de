"""Rows of sacct from the records of /slurmdb/jobs: the same texts in the same columns.

sacct and slurmrestd print the same structure of slurmdbd. A record has a job and its steps; the
CPU times of a job are sums over its steps, which sacct forms itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.agents.slurm.jobs.sacct import FIELDS, RAW_ID, STATE
from ccagent.agents.slurm.rest import forms
from ccagent.agents.slurm.rest.forms import at, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_EXIT_CODE = FIELDS.index("ExitCode")
_FAILED = frozenset({b"FAILED", b"OUT_OF_MEMORY", b"DEADLINE", b"NODE_FAIL", b"BOOT_FAIL"})
_NO_CODE = b"0:0"
_UNENDED = frozenset({b"PENDING", b"RUNNING", b"SUSPENDED"})
_CPU_TIME_ADJUSTMENT = 1000
"""Units of a CPU time in TRES lists per second; CPU_TIME_ADJ of slurm_protocol_defs.h."""

_MEGABYTE = 1 << 20
_NO_LIMIT, _LIMIT_OF_PARTITION = b"UNLIMITED", b"Partition_Limit"


class Repair:
    """Fields of jobs that a version of /slurmdb gives wrongly, from /slurm.

    Until v0.0.39 exit codes are 0, and in v0.0.38 the name of a reservation is a number.
    slurmctld has both, for as long as it has the job (MinJobAge). The codes of steps other than
    `batch` can't be had.
    """

    def __init__(self, version: str) -> None:
        minor = int(version.rpartition(".")[2])
        self.is_needed = minor < 40
        self._has_names = minor >= 39
        self.reduces_codes = minor < 44
        """True before Slurm 25.11: see `forms.exit_code`."""
        self._known: dict[tuple[int, int, int], tuple[bytes, bytes]] = {}

    def note(self, job: Mapping[str, Any]) -> None:
        """Note the fields of a job of /slurm."""
        if self.is_needed and (name := number(job.get("job_id"))):
            times = (number(job.get(key)) or 0 for key in ("submit_time", "start_time"))
            submit, start = times
            fields = forms.exit_code(job.get("exit_code")), forms.text(job.get("resv_name"))
            # A job that never started has no start in /slurmdb, and an expected one here.
            for at_start in (start, 0):
                self._known[name, submit, at_start] = fields

    def apply(self, job: Mapping[str, Any], exit_code: bytes, reservation: bytes) -> list[bytes]:
        """Return exit code and reservation of a job of /slurmdb."""
        if not self.is_needed:
            return [exit_code, reservation]
        times = (number(at(job, "time", key)) or 0 for key in ("submission", "start"))
        submit, start = times
        known = self._known.get((number(job.get("job_id")) or 0, submit, start))
        if known is None:
            return [exit_code, reservation if self._has_names else b""]
        # sacct does not show the code of a job that was ended at its limit.
        is_lost = exit_code == _NO_CODE and forms.state(at(job, "state", "current")) in _FAILED
        return [known[0] if is_lost else exit_code, known[1]]


def make_rows(job: Mapping[str, Any], repair: Repair) -> Iterator[list[bytes]]:
    """Yield the row of a job, then those of its steps, with the columns of sacct.FIELDS."""
    shown, raw = _shown_id(job), forms.digits(job.get("job_id"))
    steps = [fields for step in forms.listed(job.get("steps")) if (fields := forms.fields(step))]
    row = _job_row(job, shown, raw, steps, repair)
    yield row
    for step in steps:
        step_row = _step_row(job, step, shown, raw)
        step_row[_EXIT_CODE] = forms.exit_code(
            step.get("exit_code"), is_reduced=repair.reduces_codes
        )
        if repair.is_needed and _is_lost_batch(step_row):
            step_row[_EXIT_CODE] = row[_EXIT_CODE]
        yield step_row


def _is_lost_batch(row: list[bytes]) -> bool:
    """Return whether a row is of a batch step that failed with a code which the answer lacks."""
    is_batch = row[RAW_ID].endswith(b".batch")
    return is_batch and row[STATE] in _FAILED and row[_EXIT_CODE] == _NO_CODE


def _shown_id(job: Mapping[str, Any]) -> bytes:
    """Return the JobID: `12_3`, `12_[1-3]`, `50+1` or `7`."""
    array, task = number(at(job, "array", "job_id")), number(at(job, "array", "task_id"))
    het, offset = number(at(job, "het", "job_id")), number(at(job, "het", "job_offset"))
    if array and (tasks := forms.text(at(job, "array", "task"))):
        return b"%d_[%b]" % (array, tasks)
    if array and task is not None:
        return b"%d_%d" % (array, task)
    if het:
        return b"%d+%d" % (het, offset or 0)
    return forms.digits(job.get("job_id"))


def _job_row(
    job: Mapping[str, Any],
    shown: bytes,
    raw: bytes,
    steps: list[dict[str, Any]],
    repair: Repair,
) -> list[bytes]:
    times = at(job, "time")
    requested = at(job, "tres", "requested")
    memory = forms.tres_count(requested, "mem")
    ended = [one for one in steps if forms.state(one.get("state")) not in _UNENDED]
    exit_code, reservation = repair.apply(
        job,
        forms.exit_code(job.get("exit_code"), is_reduced=repair.reduces_codes),
        forms.text(at(job, "reservation", "name")),
    )
    row = {
        "JobID": shown,
        "JobIDRaw": raw,
        "Submit": forms.moment(at(times, "submission")),
        "Start": forms.moment(at(times, "start")),
        "End": forms.moment(at(times, "end")),
        "State": forms.state(at(job, "state", "current")),
        "User": forms.text(job.get("user") or at(job, "association", "user")),
        "Account": forms.text(job.get("account")),
        "Partition": forms.text(job.get("partition")),
        "ElapsedRaw": forms.digits(at(times, "elapsed")),
        "Suspended": forms.duration(number(at(times, "suspended")) or 0),
        "TimelimitRaw": _time_limit(times),
        "ReqCPUS": forms.digits(at(job, "required", "CPUs")),
        "ReqMem": b"" if memory is None else b"%dM" % memory,
        "ReqNodes": b"%d" % (forms.tres_count(requested, "node") or 0),
        "NodeList": forms.text(job.get("nodes")),
        "Priority": forms.digits(job.get("priority")),
        "ExitCode": exit_code,
        "ReqTRES": forms.tres(requested),
        "AllocTRES": forms.tres(at(job, "tres", "allocated")),
        "SystemCPU": _cpu_time(ended, "system"),
        "UserCPU": _cpu_time(ended, "user"),
        "Reservation": reservation,
        "JobName": forms.text(job.get("name")),
    }
    return [row.get(name, b"") for name in FIELDS]


def _step_row(
    job: Mapping[str, Any], step: Mapping[str, Any], shown: bytes, raw: bytes
) -> list[bytes]:
    times, tres = at(step, "time"), at(step, "tres")
    name = _step_name(step.get("step"))
    start = forms.moment(at(times, "start"))
    average, least = at(tres, "requested", "average"), at(tres, "requested", "min")
    most, written = at(tres, "requested", "max"), at(tres, "consumed", "average")
    allocated = at(tres, "allocated")
    cpus = forms.tres_count(allocated, "cpu")
    if cpus is None:
        of_job = at(job, "tres", "allocated") or at(job, "tres", "requested")
        cpus = forms.tres_count(of_job, "cpu")
    row = {
        "JobID": shown + b"." + name,
        "JobIDRaw": raw + b"." + name,
        "Submit": start,
        "Start": start,
        "End": forms.moment(at(times, "end")),
        "State": forms.state(step.get("state")),
        "Account": forms.text(job.get("account")),
        "ElapsedRaw": forms.digits(at(times, "elapsed")),
        "Suspended": forms.duration(number(at(times, "suspended")) or 0),
        "ReqCPUS": b"%d" % (cpus or 0),
        "ReqNodes": forms.digits(at(step, "nodes", "count")),
        "NodeList": forms.text(at(step, "nodes", "range")),
        "Layout": forms.text(at(step, "task", "distribution")),
        "AllocTRES": forms.tres(allocated),
        "AveCPU": _usage_time(average),
        "MinCPU": _usage_time(least),
        "SystemCPU": _cpu_time([step], "system"),
        "UserCPU": _cpu_time([step], "user"),
        "AveDiskRead": _megabytes(forms.tres_count(average, "fs", "disk")),
        "AveDiskWrite": _megabytes(forms.tres_count(written, "fs", "disk")),
        "AveRSS": forms.digits(forms.tres_count(average, "mem")),
        "MaxRSS": forms.digits(forms.tres_count(most, "mem")),
        "AveVMSize": forms.digits(forms.tres_count(average, "vmem")),
        "MaxVMSize": forms.digits(forms.tres_count(most, "vmem")),
        "JobName": forms.text(at(step, "step", "name")),
    }
    return [row.get(field, b"") for field in FIELDS]


def _step_name(step: Any) -> bytes:
    """Return the part of a step's id after the job: `batch`, `0`, or `0+1` of a het step.

    The id is a number or name, an object with step_id, or from v0.0.40 a text `12.batch`.
    """
    found, het = at(step, "id"), at(step, "het", "component")
    if isinstance(found, dict):
        found, het = at(found, "step_id"), at(found, "step_het_component")
    name = forms.text(found).rpartition(b".")[2]
    component = number(het)
    return name if component is None else b"%b+%d" % (name, component)


def _time_limit(times: Any) -> bytes:
    """Return TimelimitRaw. In v0.0.38 null is no limit or the partition's.

    Accounting has the partition's own limit once the job has started.
    """
    value = at(times, "limit")
    if forms.is_infinite(value):
        return _NO_LIMIT
    minutes = number(value)
    if minutes is not None:
        return b"%d" % minutes if minutes > 0 else b""
    has_started = value is None and bool(number(at(times, "start")))
    return _NO_LIMIT if has_started else _LIMIT_OF_PARTITION


def _cpu_time(steps: Iterable[Mapping[str, Any]], kind: str) -> bytes:
    parts = [at(step, "time", kind) for step in steps]
    return forms.duration(
        sum(number(at(part, "seconds")) or 0 for part in parts),
        sum(number(at(part, "microseconds")) or 0 for part in parts),
    )


def _usage_time(usage: Any) -> bytes:
    count = forms.tres_count(usage, "cpu")
    return b"" if count is None else forms.duration(count // _CPU_TIME_ADJUSTMENT)


def _megabytes(count: int | None) -> bytes:
    """Return bytes as sacct prints them with --noconvert: `0`, `0.11M`, `12M`, `1.50M`."""
    if not count:
        return b"" if count is None else b"0"
    amount = count / _MEGABYTE
    return b"%dM" % amount if amount > 1 and amount == int(amount) else b"%.2fM" % amount
