"""Records of the pinned iterators `io` and `network`: what jobs read, write, send and receive.

Source: struct record and struct network_record in io.bpf.c. The numbers are counters that only grow
as long as the entry lives, summed up over CPUs. An entry of a job whose control group was removed
stays for ten minutes, and until it was read after the removal; while the table is more than half
full only until it was read. Job 0 is everything outside of jobs.
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
"""Device of all file systems of a job beyond the first 64, or fewer in a table that fills up."""


class IoKey(NamedTuple):
    """A job and a file system. device: as the kernel encodes it, or OTHER_DEVICES."""

    job: int
    device: int

    @property
    def major_minor(self) -> str:
        """Return the device as in /proc/self/mountinfo."""
        return f"{self.device >> 20}:{self.device & 0xFFFFF}"


class IoCounts(NamedTuple):
    """What a job did on a file system.

    since: ns since boot when the entry was created; another number tells another entry. magic:
    type of the file system, as in statfs(2). reads, writes: calls of read(2), write(2) and their
    relatives, those that failed included; *_bytes: their results. read_errors, write_errors: also
    of asynchronous ones. opens to statfs: attempts. async_*: requests of libaio and io_uring that
    have ended, and their results. splice_*: sendfile(2), splice(2), copy_file_range(2), with bytes
    taken from and put into files. major_faults: pages of mapped files that had to be fetched.
    read_ns, write_ns: time in read and write calls, if the programs were loaded with it.
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
    """A job, `tcp` or `udp`, and whether the other end is on this node."""

    job: int
    protocol: str
    is_loopback: bool


class JobTraffic(NamedTuple):
    """Calls that moved data, and bytes of payload. since: as in IoCounts."""

    since: int
    sends: int
    sent_bytes: int
    receives: int
    received_bytes: int


class IoReading(NamedTuple):
    """A reading of `io`.

    lost: sums of what found no room in the kernel's table. missed: calls that no program has
    seen, at most, because the kernel skipped it; those of the network included.
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
    """Parse a reading of `io`. Raises UnparsableError if it isn't complete and of this layout."""
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
    """Parse a reading of `network`. Raises UnparsableError as `parse_io` does."""
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
    """Return the number of calls that found no room in the kernel's tables."""
    calls = sum(
        value
        for name, value in zip(io.lost._fields, io.lost, strict=True)
        if not name.endswith(("_bytes", "_ns", "_errors")) and name not in {"since", "magic"}
    )
    return calls + network.lost.sends + network.lost.receives


def _records(content: bytes, record: struct.Struct) -> list[tuple[int, ...]]:
    """Return the fields of all records. Raises UnparsableError unless the last one is `lost`."""
    end = end_of(content, record.size)
    records = list(record.iter_unpack(memoryview(content)[HEADER.size : end]))
    if not records or records[-1][0] != _LOST:
        raise UnparsableError("there is no record of what was lost")
    return records
