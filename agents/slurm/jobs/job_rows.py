"""Rows of sacct: identity, completeness and content for comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.slurm.jobs.sacct import FIELDS, RAW_ID

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = len(FIELDS)

SUBMIT = FIELDS.index("Submit")
START = FIELDS.index("Start")
END = FIELDS.index("End")
_STATE = FIELDS.index("State")
_ACCOUNT = FIELDS.index("Account")
_PARTITION = FIELDS.index("Partition")
_ELAPSED = FIELDS.index("ElapsedRaw")
TIME_LIMIT = FIELDS.index("TimelimitRaw")
_CPUS = FIELDS.index("ReqCPUS")
_NODES = FIELDS.index("NodeList")
_SYSTEM_CPU = FIELDS.index("SystemCPU")
_USER_CPU = FIELDS.index("UserCPU")

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
_NO_NODES = frozenset({b"", b"None assigned"})
_MOST_DIGITS = 11

SETTLING = 10
"""Seconds after an event in which slurmdbd may lack parts of a row."""

_CLOSING = 60
"""Seconds after the end of a job in which slurmdbd may still close its steps."""

_INCONSISTENT = 600
"""Seconds for which an inconsistent row is held back."""


def is_step(row: Sequence[bytes]) -> bool:
    """Return whether a row describes a step."""
    return b"." in row[RAW_ID]


def has_ended(row: Sequence[bytes]) -> bool:
    """Return whether the state of a row is a final state."""
    return row[_STATE] in _ENDED or state_of(row) in _ENDED


def state_of(row: Sequence[bytes]) -> bytes:
    """Return the state of a row, without additions such as `by 5002` or `+`."""
    return row[_STATE].partition(b" ")[0].rstrip(b"+")


def has_nodes(row: Sequence[bytes]) -> bool:
    """Return whether a job ever had nodes. Without nodes it never started."""
    return row[_NODES] not in _NO_NODES


def moment(text: bytes) -> int:
    """Return seconds since 1970; 0 for `Unknown`, `None` and other text."""
    return int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else 0


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
    if is_step(row) or not moment(row[START]) or not has_nodes(row):
        return b"", b""
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
    state = row[_STATE]
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
