"""The programs of io.bpf.c: the functions of the kernel that they count, and their records.

The order of HOOKS is the order of the bits in the header's `features`: new programs are appended.

Source of the records of `io` and `network`, the I/O and network traffic of jobs: struct record and
struct network_record in io.bpf.c. The numbers are counters, summed up over CPUs, that only increase
during the life of an entry. After the removal of a job's control group its entries stay for ten
minutes and until the next reading; if the table is more than half full, only until the next
reading. Job 0 is all I/O outside of jobs.
"""

from __future__ import annotations

import platform
import struct
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError
from ccagent.machine.bpf.pinned_file import HEADER, Header, end_of, parse_frame

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class IoHook(NamedTuple):
    """A program and the kernel function that it is attached to.

    arguments: supported numbers of arguments of the function; empty: any. counts: the values that
    the program counts.
    """

    program: str
    function: str
    arguments: tuple[int, ...]
    counts: str


SYSTEM_CALL = {"aarch64": "__arm64_sys_"}.get(platform.machine(), "__x64_sys_")
"""The prefix of the kernel's system call functions on this architecture."""

HOOKS = (
    IoHook("on_vfs_read", "vfs_read", (4,), "read"),
    IoHook("on_vfs_write", "vfs_write", (4,), "write"),
    IoHook("on_vfs_readv", "vfs_readv", (5,), "readv"),
    IoHook("on_vfs_writev", "vfs_writev", (5,), "writev"),
    IoHook("on_open", "security_file_open", (1, 2), "opens"),
    IoHook("on_create", "security_inode_create", (3,), "creates"),
    IoHook("on_link", "security_inode_link", (3,), "hard links"),
    IoHook("on_symlink", "security_inode_symlink", (3,), "symbolic links"),
    IoHook("on_unlink", "security_inode_unlink", (2,), "unlinks"),
    IoHook("on_mkdir", "security_inode_mkdir", (3,), "mkdirs"),
    IoHook("on_rmdir", "security_inode_rmdir", (2,), "rmdirs"),
    IoHook("on_rename", "security_inode_rename", (4, 5), "renames"),
    IoHook("on_stat", "security_inode_getattr", (1,), "stats"),
    IoHook("on_statfs", "security_sb_statfs", (1,), "statfs"),
    IoHook("on_readdir", "iterate_dir", (2,), "readdirs"),
    IoHook("on_fsync", f"{SYSTEM_CALL}fsync", (1,), "fsync"),
    IoHook("on_fdatasync", f"{SYSTEM_CALL}fdatasync", (1,), "fdatasync"),
    IoHook("on_aio_read", "aio_read", (4,), "libaio reads"),
    IoHook("on_aio_write", "aio_write", (4,), "libaio writes"),
    IoHook("on_aio_complete", "aio_complete_rw", (2, 3), "libaio results"),
    IoHook("on_io_read", "io_read", (2,), "io_uring reads"),
    IoHook("on_io_write", "io_write", (2,), "io_uring writes"),
    IoHook("on_io_complete", "io_complete_rw", (2, 3), "io_uring results"),
    IoHook("on_io_complete_polled", "io_complete_rw_iopoll", (2, 3), "polled io_uring results"),
    IoHook("on_copy_file_range", "vfs_copy_file_range", (6,), "copy_file_range"),
    IoHook("on_splice", "do_splice", (6,), "splice"),
    IoHook("on_sendfile", "do_sendfile", (5,), "sendfile"),
    IoHook("on_fault", "filemap_fault", (1,), "major page faults"),
    IoHook("on_tcp_send", "tcp_sendmsg", (3,), "TCP sent"),
    IoHook("on_tcp_sendpage", "tcp_sendpage", (5,), "TCP sendfile before Linux 6.5"),
    IoHook("on_tcp_receive", "tcp_recvmsg", (4, 5, 6), "TCP received"),
    IoHook("on_tcp_splice", "tcp_splice_read", (5,), "TCP spliced to a pipe"),
    IoHook("on_udp_send", "udp_sendmsg", (3,), "UDP sent"),
    IoHook("on_udpv6_send", "udpv6_sendmsg", (3,), "UDP sent over IPv6"),
    IoHook("on_udp_receive", "skb_consume_udp", (3,), "UDP received"),
)

TIMERS = (
    IoHook("enter_vfs_read", "vfs_read", (4,), "latency of read"),
    IoHook("enter_vfs_write", "vfs_write", (4,), "latency of write"),
    IoHook("enter_vfs_readv", "vfs_readv", (5,), "latency of readv"),
    IoHook("enter_vfs_writev", "vfs_writev", (5,), "latency of writev"),
)
"""Programs that are only attached with `has_time`."""

HAS_TIME = 1 << 63
"""Feature: read_ns and write_ns are measured."""

OF_OLD_KERNELS = frozenset({"tcp_sendpage"})
"""Functions that newer kernels do not use. Without them no values are missing."""


def select_hooks(functions: Mapping[str, int], hooks: tuple[IoHook, ...]) -> dict[IoHook, str]:
    """Return for each hook the reason for which it can't be used, "" if it can.

    functions: number of arguments by function of the kernel.
    """
    return {hook: _reason(hook, functions) for hook in hooks}


def features_of(hooks: frozenset[str], *, has_time: bool) -> int:
    """Return the feature bits of programs by their names."""
    bits = sum(1 << number for number, hook in enumerate(HOOKS) if hook.program in hooks)
    return bits | (HAS_TIME if has_time else 0)


def missing_hooks(features: int) -> list[IoHook]:
    """Return the hooks that this kernel lacks, from the features of a reading."""
    return [
        hook
        for number, hook in enumerate(HOOKS)
        if not features >> number & 1 and hook.function not in OF_OLD_KERNELS
    ]


def _reason(hook: IoHook, functions: Mapping[str, int]) -> str:
    found = functions.get(hook.function)
    if found is None:
        return f"{hook.function}: this kernel has no such function"
    if hook.arguments and found not in hook.arguments:
        return f"{hook.function}: {found} arguments instead of {hook.arguments[-1]}"
    return ""


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
