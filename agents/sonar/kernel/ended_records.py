"""What the pinned iterator `ended` gives: what ended processes used, by job, user and command.

Source: struct record in ended.bpf.c. The numbers are counters that only grow while the programs are
loaded: a reader takes the difference of two readings. A process that reads again is told of the
entries that have changed since it began to read before, in the second before that, or since then.
An entry that was not added to for ten minutes, or for long when others need its place, is gone;
if it comes again, it begins at 0 with another `since`. `Total` counts everything, so what was
gone before it was read is the difference to its growth.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ccagent.agents.sonar.kernel.pinned_file import HEADER, Header, end_of, parse_frame
from ccagent.errors import UnparsableError

MAGIC = b"ccexits\n"
LAYOUT = 1
RECORD = struct.Struct("<QQIII4x16s10Q")


class Key(NamedTuple):
    """Whose the processes were when they ended.

    cgroup, cpuacct: as in `task_records.Task`. job: Slurm's, by the name of its control group,
    which may be gone; then cgroup, cpuacct and pgid are 0. pgid: 0 also if it is no longer known.
    euid: effective user; command: comm.
    """

    cgroup: int
    cpuacct: int
    job: int
    pgid: int
    euid: int
    command: bytes


class Ended(NamedTuple):
    """What they used: ns on a CPU, all threads, without children; bytes; the largest one's pages.

    since, last: ns since boot when the entry was made and when it was last added to.
    """

    processes: int
    runtime: int
    rchar: int
    wchar: int
    read_bytes: int
    write_bytes: int
    cancelled_write_bytes: int
    max_pages: int
    since: int
    last: int


class Total(NamedTuple):
    """All that ended since the programs were loaded; `entries` made, `refused` could not be.

    processes: when the reading began; entries may tell of later ones already.
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


class Reading(NamedTuple):
    """One reading of the file."""

    header: Header
    entries: dict[Key, Ended]
    total: Total


def parse_ended(content: bytes) -> Reading:
    """Parse a reading. Raises UnparsableError if it isn't complete and of this layout."""
    header = parse_frame(content, MAGIC, LAYOUT, RECORD.size)
    end = end_of(content, RECORD.size)
    records = [
        (Key._make((*fields[:5], fields[5].partition(b"\0")[0])), fields[6:])
        for fields in RECORD.iter_unpack(memoryview(content)[HEADER.size : end])
    ]
    if not records or records[-1][0] != _NOBODY:
        raise UnparsableError("there is no total")
    _, total = records.pop()
    return Reading(header, {key: Ended._make(sums) for key, sums in records}, Total._make(total))


_NOBODY = Key(0, 0, 0, 0, 0, b"")
"""The key of the total: a process is in a job or in some control group."""
