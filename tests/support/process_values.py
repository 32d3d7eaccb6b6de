"""Values of processes as /proc has them, and the same of a reading of `tasks`."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any, NamedTuple

from ccagent.machine.bpf.process_records import INEXACT, KERNEL_THREAD, Task, command, ticks

_HERTZ = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE") // 1024
_IO = ("rchar", "wchar", "read_bytes", "write_bytes", "cancelled_write_bytes")


class ProcFiles(NamedTuple):
    """Contents of files of /proc/PID, and the owner of the directory."""

    stat: bytes
    statm: bytes
    status: bytes
    io: bytes
    owner: int


def read_proc() -> dict[int, ProcFiles]:
    """Return the files of each process."""
    found: dict[int, ProcFiles] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        path = Path(f"/proc/{pid}")
        try:
            stat, statm, status, io = (
                (path / name).read_bytes() for name in ("stat", "statm", "status", "io")
            )
            found[pid] = ProcFiles(stat, statm, status, io, path.stat().st_uid)
        except OSError:
            continue
    return found


def numbers(content: bytes) -> dict[str, list[int]]:
    """Lines `Name: number number`."""
    return {
        name: list(map(int, re.findall(r"-?\d+", rest)))
        for name, _, rest in (line.partition(":") for line in content.decode().splitlines())
    }


def values_of_proc(files: ProcFiles) -> dict[str, Any]:
    """Return the values of a process by /proc."""
    name, _, rest = files.stat.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    values = [0, 0, 0, *map(int, fields[1:])]
    return {
        "command": name,
        "state": fields[0],
        "parent, group, session": (values[3], values[4], values[5]),
        "kernel thread": bool(values[8] & 0x200000),
        "ticks": (values[13] + values[14], sum(values[13:17])),
        "threads": values[19],
        "start": values[21],
        "users": numbers(files.status)["Uid"][:3],
        "owner": files.owner,
        "data": int(files.statm.split()[5]),
        "io": [numbers(files.io)[each][0] for each in _IO],
        "inexact": 0,
    }


def values_of_task(task: Task) -> dict[str, Any]:
    """Return the same values by a record of `tasks`."""
    return {
        "command": command(task),
        "state": bytes([task.state]),
        "parent, group, session": (task.ppid, task.pgid, task.sid),
        "kernel thread": bool(task.flags & KERNEL_THREAD),
        "ticks": ticks(task, _HERTZ),
        "threads": task.num_threads,
        "start": task.start * _HERTZ // 10**9,
        "users": [task.ruid, task.euid, task.suid],
        "owner": task.euid,
        "data": task.data_pages,
        "io": [getattr(task, each) for each in _IO],
        "inexact": task.flags & INEXACT,
    }


def anonymous_pages(files: ProcFiles) -> int:
    """Return the pages of anonymous memory by /proc."""
    return numbers(files.status).get("RssAnon", [0])[0] // _PAGE


def slack_of_proc() -> int:
    """Return how many pages /proc may differ from what is exact.

    Before 6.17 it tells as much as batches of the CPUs allow, before 6.2 exactly.
    """
    release = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    return 64 * (os.cpu_count() or 1) if (6, 2) <= release < (6, 17) else 0
