"""Records of the pinned iterators `io` and `network`: I/O and network traffic of jobs.

Source: struct record and struct network_record in io.bpf.c. The numbers are counters, summed up
over CPUs, that only increase during the life of an entry. After the removal of a job's control
group its entries stay for ten minutes and until the next reading; if the table is more than half
full, only until the next reading. Job 0 is all I/O outside of jobs.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ccagent.errors import UnparsableError
from ccagent.machine.bpf.pinned_file import HEADER, Header, end_of, parse_frame

IO_MAGIC = b"ccioent\n"
NETWORK_MAGIC = b"ccionet\n"
LAYOUT = 1
IO_RECORD = struct.Struct("<2I30Q")
NETWORK_RECORD = struct.Struct("<2I5Q")
LARGEST_READING = 64 * 1024 * 1024

_LOST = 0xFFFFFFFF
_TCP, _UDP = 1, 2
_LOOPBACK = 0x100


OTHER_DEVICES = 0xFFFFFFFF
"""Device of all file systems of a job after the first 64, or fewer while the table fills up."""


class IoKey(NamedTuple):
    """A job and a file system. device: in the kernel's encoding, or OTHER_DEVICES."""

    job: int
    device: int

    @property
    def major_minor(self) -> str:
        """Return the device as `major:minor`, as in /proc/self/mountinfo."""
        return f"{self.device >> 20}:{self.device & 0xFFFFF}"


class IoCounts(NamedTuple):
    """Counters of a job on a file system.

    since: creation of the entry in ns since boot; a different value means a new entry. magic: type
    of the file system, as in statfs(2). reads, writes: calls of read(2), write(2) and their
    variants, including failed calls; *_bytes: their results. read_errors, write_errors: including
    asynchronous requests. opens to statfs: attempts. async_*: completed requests of libaio and
    io_uring, and their results. splice_*: sendfile(2), splice(2), copy_file_range(2), with bytes
    from and to files. major_faults: of mapped files. read_ns, write_ns: time of read and write
    calls, if the programs were loaded with times.
    """

    since: int
    magic: int
    reads: int
    read_bytes: int
    read_errors: int
    writes: int
    write_bytes: int
    write_errors: int
    opens: int
    creates: int
    links: int
    unlinks: int
    mkdirs: int
    rmdirs: int
    renames: int
    stats: int
    readdirs: int
    fsyncs: int
    statfs: int
    async_reads: int
    async_read_bytes: int
    async_writes: int
    async_write_bytes: int
    splice_reads: int
    splice_read_bytes: int
    splice_writes: int
    splice_write_bytes: int
    major_faults: int
    read_ns: int
    write_ns: int


class NetworkKey(NamedTuple):
    """A job and a kind of traffic. protocol: `tcp`, `udp`. is_loopback: both ends are here."""

    job: int
    protocol: str
    is_loopback: bool


class JobTraffic(NamedTuple):
    """Calls that transferred data, and bytes of payload. since: as in IoCounts."""

    since: int
    sends: int
    sent_bytes: int
    receives: int
    received_bytes: int


class IoReading(NamedTuple):
    """A reading of `io`.

    lost: sums of calls without an entry, because the kernel's table was full. missed: maximum
    number of calls that were not counted because the kernel skipped the program; including network
    calls.
    """

    header: Header
    entries: dict[IoKey, IoCounts]
    lost: IoCounts
    missed: int = 0


class NetworkReading(NamedTuple):
    """A reading of `network`. lost: as in IoReading."""

    header: Header
    entries: dict[NetworkKey, JobTraffic]
    lost: JobTraffic


def parse_io(content: bytes) -> IoReading:
    """Parse a reading of `io`. Raise UnparsableError if it is incomplete or has another layout."""
    header = parse_frame(content, IO_MAGIC, LAYOUT, IO_RECORD.size)
    records = _records(content, IO_RECORD)
    lost = records.pop()
    return IoReading(
        header,
        {IoKey(fields[0], fields[1]): IoCounts._make(fields[2:]) for fields in records},
        IoCounts._make(lost[2:]),
        Header._make(HEADER.unpack_from(content, end_of(content, IO_RECORD.size))).features,
    )


def parse_network(content: bytes) -> NetworkReading:
    """Parse a reading of `network`. Raise UnparsableError as `parse_io` does."""
    header = parse_frame(content, NETWORK_MAGIC, LAYOUT, NETWORK_RECORD.size)
    records = _records(content, NETWORK_RECORD)
    lost = records.pop()
    entries: dict[NetworkKey, JobTraffic] = {}
    for job, kind, *traffic in records:
        protocol = {_TCP: "tcp", _UDP: "udp"}.get(kind & ~_LOOPBACK)
        if protocol is None:
            raise UnparsableError(f"traffic of the unknown kind {kind}")
        key = NetworkKey(job, protocol, bool(kind & _LOOPBACK))
        entries[key] = JobTraffic._make(traffic)
    return NetworkReading(header, entries, JobTraffic._make(lost[2:]))


def count_lost(io: IoReading, network: NetworkReading) -> int:
    """Return the number of calls that were lost because the kernel's tables were full."""
    calls = sum(
        value
        for name, value in zip(io.lost._fields, io.lost, strict=True)
        if not name.endswith(("_bytes", "_ns", "_errors")) and name not in {"since", "magic"}
    )
    return calls + network.lost.sends + network.lost.receives


def _records(content: bytes, record: struct.Struct) -> list[tuple[int, ...]]:
    """Return the fields of all records. Raise UnparsableError unless the last is `lost`."""
    end = end_of(content, record.size)
    records = list(record.iter_unpack(memoryview(content)[HEADER.size : end]))
    if not records or records[-1][0] != _LOST:
        raise UnparsableError("the record of lost calls is missing")
    return records
