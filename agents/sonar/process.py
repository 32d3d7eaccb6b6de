"""What the agent knows of one process, and where it can come from."""

from __future__ import annotations

from typing import Protocol

import msgspec

from ccagent.envelopes import NO_FLOAT


class Process(msgspec.Struct, frozen=True, gc=False):
    """One process at one reading. A source gives the same object again if nothing has changed.

    job: Slurm's raw job id, 0 outside of Slurm.
    start_time, cpu_seconds: seconds after boot; user and system time without children.
    cpu_time: seconds, waited-for children included, rounded.
    cpu_util: percent of one core since the previous reading.
    resident_memory, virtual_memory, data_*: KB.
    num_threads: threads besides the first.
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


class ProcessSource(Protocol):
    """Gives all processes that the selection wants."""

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
