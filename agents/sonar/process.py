"""What the agent knows of one process, and where it can come from."""

from __future__ import annotations

from typing import Protocol

import msgspec

from ccagent.records.envelopes import NO_FLOAT

FIRST_PID_OF_ENDED = 2**30
"""Pids from here on are of records of ended processes: real ones are below 2**22."""

UNKNOWN_USER = "_user_unknown"
"""Owner of processes whose user can't be found out."""

ENDED = " <ended>"
"""Stands behind the command of a record of ended processes."""


class Process(msgspec.Struct, frozen=True, gc=False):
    """One process at one reading. A source gives the same object again if nothing has changed.

    job: Slurm's raw job id, 0 outside of Slurm.
    start_time, cpu_seconds: seconds after boot; user and system time without children.
    cpu_time: seconds, waited-for children included, rounded.
    cpu_util: percent of one core since the previous reading.
    resident_memory, virtual_memory, data_*: KB.
    num_threads: threads besides the first.
    rolledup: how many processes this stands for besides one.
    is_ended: it stands for processes that have ended. Then cpu_seconds is what they used since the
    previous reading, start_time and cpu_time are 0, and the pid is above all that are real.
    """

    pid: int
    ppid: int
    process_group: int
    job: int
    uid: int
    command: str
    in_container: bool
    start_time: float
    cpu_seconds: float
    cpu_time: int
    cpu_util: float
    resident_memory: int
    virtual_memory: int
    num_threads: int
    data_read: int
    data_written: int
    data_cancelled: int
    rolledup: int = 0
    is_ended: bool = False


class ProcessSource(Protocol):
    """Gives all processes that the selection wants."""

    @property
    def name(self) -> str:
        """As the configuration has it."""
        ...

    @property
    def counts_ended(self) -> bool:
        """Return whether the last reading had what processes used that have ended."""
        ...

    @property
    def errors(self) -> list[str]:
        """What could not be read or parsed at the last reading, a sentence each."""
        ...

    def begin(self) -> None:
        """Take a first reading of CPU times, from which the next `read` counts."""
        ...

    def read(self) -> list[Process]:
        """Read all wanted processes. Those that vanish meanwhile are left out in silence."""
        ...

    def close(self) -> None:
        """Let go of what is held open."""
        ...


def utilization(ticks: int, seconds: float, clock_ticks: int) -> float:
    """Percent of one core that `ticks` used within `seconds`; never negative."""
    if ticks <= 0 or seconds <= 0:
        return NO_FLOAT
    return round(100.0 * ticks / clock_ticks / seconds, 3) or NO_FLOAT


def kilobytes(size: int) -> int:
    """Bytes as KB, rounded up."""
    return -(-size // 1024)
