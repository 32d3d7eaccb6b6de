"""Records of the pinned iterator `ended`: sums over ended processes, by job, user and command.

Source: struct record in ended.bpf.c. The numbers are counters that only grow while the programs are
loaded: a reader takes the difference of two readings. Each reading has the entries that have
changed since one second before the previous one of the same reader. An entry without changes for
`kept` ns, or for long when others need its place, is removed; if its key occurs again, it starts at
0 with another `since`. `Total` counts everything: the difference between its delta and those of
the entries was removed before it was read.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError
from ccagent.machine.bpf.pinned_file import HEADER, Header, end_of, parse_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"ccexits\n"
LAYOUT = 2
RECORD = struct.Struct("<QQIII4x16s10Q")

_KEY = struct.Struct("<QQIII4x16s")
_COUNTERS = struct.Struct("<48s2Q48x2Q")
_TOTAL = struct.Struct("<48s10Q")


RawEntry = tuple[bytes, int, int, int, int]
"""The bytes of a key, and processes, runtime, since and last of `Ended`."""


class EndedKey(NamedTuple):
    """Owner of the processes at their exit.

    cgroup, cpuacct: as in `task_records.Task`. job: Slurm's, by the name of its control group,
    which may be removed; then cgroup, cpuacct and pgid are 0. pgid: 0 also if it is unknown,
    and for a process that used less than 100 ms in a group whose leader was not there at the last
    reading. euid: effective user; command: comm.
    """

    cgroup: int
    cpuacct: int
    job: int
    pgid: int
    euid: int
    command: bytes


class Ended(NamedTuple):
    """Sums of an entry: ns on a CPU, all threads, without children; bytes; the largest one's pages.

    since, last: ns since boot when the entry was created and when it last changed.
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
    """All processes ended since the programs were loaded; `entries` created, `refused` not created.

    processes: at the start of the reading; entries may include later ones.
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
    """One reading, its entries parsed only as far as needed to see which have changed.

    kept: ns after which the kernel removes an entry without changes. unseen: processes counted with
    their values at exit, because their release was not seen.
    """

    header: Header
    entries: Iterator[RawEntry]
    total: Total
    kept: int
    unseen: int


class EndedReading(NamedTuple):
    """One reading, fully parsed. unseen: as in RawEndedReading."""

    header: Header
    entries: dict[EndedKey, Ended]
    total: Total
    unseen: int


def parse_raw(content: bytes) -> RawEndedReading:
    """Parse the counters that show changed entries. Raises UnparsableError as parse_ended."""
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
    return EndedKey._make((*fields[:5], fields[5].partition(b"\0")[0]))


def parse_ended(content: bytes) -> EndedReading:
    """Parse a reading. Raises UnparsableError if it isn't complete and of this layout."""
    raw = parse_raw(content)
    last = end_of(content, RECORD.size) - RECORD.size
    entries = {
        EndedKey._make((*fields[:5], fields[5].partition(b"\0")[0])): Ended._make(fields[6:])
        for fields in RECORD.iter_unpack(memoryview(content)[HEADER.size : last])
    }
    return EndedReading(raw.header, entries, raw.total, raw.unseen)
