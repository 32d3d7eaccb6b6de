"""Parsers of NFS: operations in /proc/net/rpc/{nfs,nfsd}, mounts in /proc/self/mountstats.

Source: nfs_show_stats() in fs/nfs/super.c, rpc_clnt_show_stats() and svc_seq_show() in net/sunrpc,
and nfsd_show() in fs/nfsd/stats.c of Linux.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError
from ccagent.machine.procfs.mountinfo import unescape_name
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


NFS2 = (
    "null", "getattr", "setattr", "root", "lookup", "readlink", "read", "wrcache", "write",
    "create", "remove", "rename", "link", "symlink", "mkdir", "rmdir", "readdir", "fsstat",
)  # fmt: skip
"""Operations by number (RFC 1094)."""

NFS3 = (
    "null", "getattr", "setattr", "lookup", "access", "readlink", "read", "write", "create",
    "mkdir", "symlink", "mknod", "remove", "rmdir", "rename", "link", "readdir", "readdirplus",
    "fsstat", "fsinfo", "pathconf", "commit",
)  # fmt: skip
"""Operations by number (RFC 1813)."""

NFS4 = (
    "null", "read", "write", "commit", "open", "open_confirm", "open_noattr", "open_downgrade",
    "close", "setattr", "fsinfo", "renew", "setclientid", "setclientid_confirm", "lock", "lockt",
    "locku", "access", "getattr", "lookup", "lookup_root", "remove", "rename", "link", "symlink",
    "create", "pathconf", "statfs", "readlink", "readdir", "server_caps", "delegreturn", "getacl",
    "setacl", "fs_locations", "release_lockowner", "secinfo", "fsid_present", "exchange_id",
    "create_session", "destroy_session", "sequence", "get_lease_time", "reclaim_complete",
    "layoutget", "getdeviceinfo", "layoutcommit", "layoutreturn", "secinfo_no_name",
    "test_stateid", "free_stateid", "getdevicelist", "bind_conn_to_session", "destroy_clientid",
    "seek", "allocate", "deallocate", "zero_range", "layoutstats", "clone", "copy",
    "offload_cancel", "lookupp", "layouterror", "copy_notify", "getxattr", "setxattr",
    "listxattrs", "removexattr", "read_plus", "offload_status",
)  # fmt: skip
"""Client operations in the order of Linux 6.16, NFSPROC4_CLNT_* in include/linux/nfs4.h."""


NFSD4 = {
    3: "access", 4: "close", 5: "commit", 6: "create", 7: "delegpurge", 8: "delegreturn",
    9: "getattr", 10: "getfh", 11: "link", 12: "lock", 13: "lockt", 14: "locku", 15: "lookup",
    16: "lookupp", 17: "nverify", 18: "open", 19: "openattr", 20: "open_confirm",
    21: "open_downgrade", 22: "putfh", 25: "read", 26: "readdir", 27: "readlink", 28: "remove",
    29: "rename", 30: "renew", 31: "restorefh", 32: "savefh", 33: "secinfo", 34: "setattr",
    35: "setclientid", 36: "setclientid_confirm", 37: "verify", 38: "write",
    39: "release_lockowner",
}  # fmt: skip
"""Operations of a server by number (RFC 7530)."""

_LINES = (b"net", b"rpc", b"proc", b"rc", b"fh", b"io", b"th", b"ra", b"wdeleg")


def parse_operations(content: bytes) -> dict[str, list[int]]:
    """Parse /proc/net/rpc/nfs and nfsd: the numbers of the lines `net`, `rpc`, `proc3` and others.

    net: all packets, UDP packets, TCP packets, TCP connections. rpc: calls, retransmissions,
    refreshed logins; of a server calls and errors. In a line `proc4 2 0 17` the first number is
    the count of the operations that follow. th: the number of threads. Raise UnparsableError.
    """
    counters: dict[str, list[int]] = {}
    for line in content.split(b"\n"):
        words = line.split()
        if not words or not words[0].startswith(_LINES):
            continue
        if words[0] == b"th":
            words = words[:2]  # a histogram of seconds, not used since Linux 2.6.30, follows
        try:
            numbers = [int(word) for word in words[1:]]
        except ValueError as error:
            raise UnparsableError(f"not a number: {line[:80]!r}") from error
        if numbers and (min(numbers) < 0 or max(numbers) > LARGEST_UINT):
            raise UnparsableError(f"out of range: {line[:80]!r}")
        if words[0].startswith(b"proc"):
            number, *numbers = numbers or [-1]
            if number != len(numbers):
                raise UnparsableError(f"wrong number of counters: {line[:80]!r}")
        counters[words[0].decode("utf-8", "replace")] = numbers
    return counters


def operations4(number: int) -> Sequence[str]:
    """Return the known NFSv4 client operations of a kernel that has `number` operations.

    The kernel usually appends new operations. fsid_present (Linux 3.13) and zero_range (6.16) were
    inserted, and the order after `copy` differs between kernels.
    """
    names = [name for name in NFS4 if name != "zero_range" or number > 70]
    if number <= 53:
        names.remove("fsid_present")
    if number < 69:
        names = names[: names.index("copy") + 1]
    return names[:number]


_MOUNT = re.compile(rb"(?:device )?(\S+) mounted on (\S+) with fstype nfs(4?) ")
_VERSION = re.compile(rb"p/v: 100003/(\d)")
_BYTES = re.compile(rb"\n\tbytes:\t?([0-9 ]+)\n")
_OPERATION = re.compile(rb"\n[\t ]+([A-Z][A-Z0-9_]*): ([0-9][0-9 ]*)(?=\n)")
_BYTE_COUNTERS = 8
_OPERATION_COUNTERS = 8
_TIMES = slice(5, 8)
_LONGEST_TIME = 2**63 - 1


class NfsOperationCounters(NamedTuple):
    """Counters of operations since the mount.

    sent: transmissions, including repetitions. queued, rtt, execution: sums of milliseconds before
    the transmission, from transmission to reply, and in total; 0 for a sum below 0, which the
    kernel prints as a number near 2^64. errors: None before Linux 5.3 (statvers 1.0).
    """

    operations: int = 0
    sent: int = 0
    timeouts: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    queued: int = 0
    rtt: int = 0
    execution: int = 0
    errors: int | None = None


class NfsMount(NamedTuple):
    """Counters of a mount since it was mounted.

    source: such as `server:/export`. moved: bytes by read(2) and write(2), bytes by them with
    O_DIRECT, bytes from and to the server, pages read and written. table: the text that
    parse_nfs_operations reads.
    """

    source: str
    point: str
    version: int
    moved: tuple[int, ...]
    table: bytes
    head: bytes = b""
    """The text before the table, which parse_nfs_transport reads."""


def parse_nfs_mounts(content: bytes) -> tuple[list[NfsMount], list[str]]:
    """Return the mounts in file order; the last mount of a mount point is visible.

    Skip incomplete or damaged mounts, and return a message for each.
    """
    mounts: list[NfsMount] = []
    problems: list[str] = []
    for block in content.split(b"\ndevice "):
        found = _MOUNT.match(block)
        if found is None:
            continue
        source, point = (
            unescape_name(text.decode("utf-8", "surrogateescape")) for text in found.groups()[:2]
        )
        version = _VERSION.search(block)
        number = int(version[1]) if version else 4 if found[3] else 3
        head, _, table = block.partition(b"per-op statistics")
        try:
            mounts.append(NfsMount(source, point, number, _parse_moved(head), table, head))
        except UnparsableError as error:
            problems.append(f"mount {ascii(point)[:80]}: {error}")
    return mounts, problems


def _parse_moved(head: bytes) -> tuple[int, ...]:
    found = _BYTES.search(head)
    if found is None:
        raise UnparsableError("no line of bytes")
    moved = _numbers(found[1])
    if len(moved) < _BYTE_COUNTERS:
        raise UnparsableError(f"bytes: {len(moved)} numbers, not 8")
    return tuple(moved[:_BYTE_COUNTERS])


_AGE = re.compile(rb"\n\tage:\t([0-9]+)\n")
_EVENTS = re.compile(rb"\n\tevents:\t([0-9 ]+)\n")
_TRANSPORT = re.compile(rb"\n\txprt:\t(tcp|udp|rdma) ([0-9 ]+)(?=\n)")


class NfsTransport(NamedTuple):
    """Counters of a connection to a server. idle: seconds; None for UDP.

    connects: None for UDP. slots, sending, pending: None before Linux 3.4 and for RDMA.
    """

    protocol: str
    binds: int
    connects: int | None
    idle: int | None
    sends: int
    receives: int
    bad_ids: int
    backlog: int
    slots: int | None = None
    sending: int | None = None
    pending: int | None = None


class NfsMountDetails(NamedTuple):
    """Age of a mount in seconds, its events in the order of the kernel, its connections."""

    age: int
    events: tuple[int, ...]
    transports: tuple[NfsTransport, ...]


def parse_nfs_details(head: bytes) -> NfsMountDetails:
    """Parse the text of a mount before its operations. Raise UnparsableError."""
    age, events = _AGE.search(head), _EVENTS.search(head)
    transports = [
        _make_transport(protocol.decode(), _numbers(numbers))
        for protocol, numbers in _TRANSPORT.findall(head)
    ]
    if age is None or events is None or not transports:
        raise UnparsableError("neither age nor events nor a transport")
    return NfsMountDetails(_numbers(age[1])[0], tuple(_numbers(events[1])), tuple(transports))


def _make_transport(protocol: str, numbers: list[int]) -> NfsTransport:
    """Return a connection. Source: print_stats of net/sunrpc/{xprtsock,xprtrdma/transport}.c."""
    is_udp = protocol == "udp"
    if len(numbers) < (7 if is_udp else 10):
        raise UnparsableError(f"xprt: {len(numbers)} numbers of {protocol}")
    binds, rest = numbers[1], numbers[2:]
    connects, idle = (None, None) if is_udp else (rest[0], rest[2])
    sends, receives, bad_ids, _, backlog, *more = rest if is_udp else rest[3:]
    shown = more[:3] if protocol != "rdma" and len(more) >= 3 else ()
    return NfsTransport(protocol, binds, connects, idle, sends, receives, bad_ids, backlog, *shown)


def parse_nfs_operations(table: bytes) -> dict[str, NfsOperationCounters]:
    """Return the counters of a mount by operation, such as READ. Raise UnparsableError."""
    operations: dict[str, NfsOperationCounters] = {}
    # The last line counts only if it is complete.
    for name, numbers in _OPERATION.findall(table):
        counters = _numbers(numbers)
        if len(counters) < _OPERATION_COUNTERS:
            raise UnparsableError(f"{name.decode()}: {len(counters)} numbers, not 8 or 9")
        counters[_TIMES] = [0 if time > _LONGEST_TIME else time for time in counters[_TIMES]]
        operations[name.decode()] = NfsOperationCounters(
            *counters[: len(NfsOperationCounters._fields)]
        )
    if not operations:
        raise UnparsableError("no statistics of operations")
    return operations


def _numbers(text: bytes) -> list[int]:
    numbers: list[int] = []
    for word in text.split():
        if len(word) > 20 or int(word) > LARGEST_UINT:
            raise UnparsableError(f"out of range: {word[:40]!r}")
        numbers.append(int(word))
    return numbers


def total_operations(operations: Iterable[NfsOperationCounters]) -> NfsOperationCounters:
    """Return the sums over operations, of which there is at least one."""
    counters = list(operations)
    errors = [each.errors for each in counters if each.errors is not None]
    columns = zip(*(each[:_OPERATION_COUNTERS] for each in counters), strict=True)
    return NfsOperationCounters(*map(sum, columns))._replace(errors=sum(errors) if errors else None)
