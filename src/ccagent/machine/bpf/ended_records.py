"""Records of the pinned iterator `ended`: sums over ended processes, by job, user and command.

Source: struct record in ended.bpf.c. The numbers are counters that only increase while the programs
are loaded: a reader computes deltas of two readings. Each reading has the entries changed since one
second before the previous reading. An entry is removed if it has not changed for `kept` ns, or
earlier if the table is full. A removed key starts again at 0 with a new `since`. `Total` counts all
processes: the excess of its delta over the sum of the entries' deltas was removed unread.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError
from ccagent.machine.bpf.pinned_file import HEADER, Header, end_of, parse_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"ccexits\n"
LAYOUT = 3
RECORD = struct.Struct("<QQIIII16s10Q")

_KEY = struct.Struct("<QQIIII16s")
_COUNTERS = struct.Struct("<48s2Q48x2Q")
_TOTAL = struct.Struct("<48s10Q")


RawEntry = tuple[bytes, int, int, int, int]
"""The bytes of a key, and sums over its processes: their number, ns on a CPU, and the creation and
last change of the entry in ns since boot."""


class EndedKey(NamedTuple):
    """Owner of the processes at their exit.

    cgroup, cpuacct: as in `task_records.Task`; cgroup: the job's if its number was not known. job:
    Slurm's job id. For a process in a job cgroup, cpuacct and pgid are 0. pgid: also 0 if unknown,
    and for a process with less than 100 ms CPU time whose group leader did not exist at the last
    reading. euid: effective user. is_slurms_own: slurmstepd or its placeholder in the step extern;
    then cgroup, cpuacct and job are 0. command: comm.
    """

    cgroup: int
    cpuacct: int
    job: int
    pgid: int
    euid: int
    is_slurms_own: int
    command: bytes


class Total(NamedTuple):
    """Sums over all processes that ended since the programs were loaded, without their children.

    runtime: ns on a CPU. *_bytes, rchar, wchar: bytes. max_pages: the maximum over the processes.
    entries, refused: number of created entries, and of entries that could not be created.
    processes: at the start of the reading; entries may include later processes.
    """

    processes: int
    runtime: int
    rchar: int
    wchar: int
    read_bytes: int
    write_bytes: int
    cancelled_write_bytes: int
    max_pages: int
    entries: int
    refused: int


class RawEndedReading(NamedTuple):
    """One reading. Its entries are only parsed as far as needed to detect changes.

    kept: ns after which the kernel removes an unchanged entry. unseen: number of processes counted
    with their values at exit, because their release was not observed.
    """

    header: Header
    entries: Iterator[RawEntry]
    total: Total
    kept: int
    unseen: int


def parse_raw(content: bytes) -> RawEndedReading:
    """Parse a reading. Raise UnparsableError if it is incomplete or has another layout."""
    header = parse_frame(content, MAGIC, LAYOUT, RECORD.size)
    end = end_of(content, RECORD.size)
    last = end - RECORD.size
    if last < HEADER.size:
        raise UnparsableError("there is no total")
    key, *total = _TOTAL.unpack_from(content, last)
    if any(key):
        raise UnparsableError("there is no total")
    entries: Iterator[RawEntry] = _COUNTERS.iter_unpack(memoryview(content)[HEADER.size : last])
    unseen = Header._make(HEADER.unpack_from(content, end)).features
    return RawEndedReading(header, entries, Total._make(total), header.features, unseen)


def parse_key(raw: bytes) -> EndedKey:
    """Parse the key of a RawEntry."""
    fields = _KEY.unpack(raw)
    return EndedKey._make((*fields[:6], fields[6].partition(b"\0")[0]))
