"""What a composed machine is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.machines.processes import NO_IO, Io, Process
from tests.support.recorded import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class Composed:
    """A machine and the text of its files by path.

    `old`: a kernel before 4.1, whose /proc/PID/status lacks much.
    """

    name: str
    machine: Machine
    files: Mapping[str, str]
    processes: Sequence[Process]
    old: bool = False


def description(
    *,
    origin: str,
    hostname: str,
    cluster: str,
    time: float,
    uptime: float,
    users: Mapping[int, str],
    processes: Sequence[Process],
    page_size: int = 4096,
) -> Machine:
    """What machine.json says of a composed machine."""
    return Machine(
        origin=f"composed by hand: {origin}",
        licence="CC0-1.0",
        hostname=hostname,
        cluster=cluster,
        time=time,
        monotonic=uptime,
        uptime=uptime,
        clock_ticks=100,
        page_size=page_size,
        users={str(uid): name for uid, name in users.items()},
        owners={str(process.pid): process.uid for process in processes},
    )


def kernel_threads(
    names: Mapping[int, bytes], cgroup: str, *, io: Io | None = NO_IO
) -> list[Process]:
    """Kernel threads by id; kthreadd, their parent, comes first."""
    return [
        Process(
            pid=pid,
            parent=0 if pid == 2 else 2,
            comm=comm,
            cgroup=cgroup,
            started=20 + pid,
            kernel=True,
            state="I" if comm.startswith((b"kworker", b"rcu")) else "S",
            system_time=pid * 3,
            io=io,
        )
        for pid, comm in names.items()
    ]
