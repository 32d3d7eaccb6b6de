"""Parsers for NFS clients: operations in /proc/net/rpc/nfs, mounts in /proc/self/mountstats.

Source: nfs_show_stats() in fs/nfs/super.c and rpc_clnt_show_stats() in net/sunrpc/stats.c of Linux.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError
from ccagent.machine.procfs.mountinfo import unescape_name
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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


def parse_operations(content: bytes) -> dict[str, list[int]]:
    """Parse /proc/net/rpc/nfs: lines `net`, `rpc`, `proc3`, `proc4`.

    net: all packets, UDP packets, TCP packets, TCP connections. rpc: calls, retransmissions,
    refreshed logins. In a line `proc4 2 0 17` the first number is the count of the operations that
    follow. Raise UnparsableError.
    """
    counters: dict[str, list[int]] = {}
    for line in content.split(b"\n"):
        words = line.split()
        if not words or not words[0].startswith((b"net", b"rpc", b"proc")):
            continue
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


class NfsOperationCounters(NamedTuple):
    """Counters of operations since the mount.

    sent: transmissions, including repetitions. queued, rtt, execution: sums of milliseconds before
    the transmission, from transmission to reply, and in total. errors: None before Linux 5.3
    (statvers 1.0).
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
            mounts.append(NfsMount(source, point, number, _parse_moved(head), table))
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


def parse_nfs_operations(table: bytes) -> dict[str, NfsOperationCounters]:
    """Return the counters of a mount by operation, such as READ. Raise UnparsableError."""
    operations: dict[str, NfsOperationCounters] = {}
    # The last line counts only if it is complete.
    for name, numbers in _OPERATION.findall(table):
        counters = _numbers(numbers)
        if len(counters) < _OPERATION_COUNTERS:
            raise UnparsableError(f"{name.decode()}: {len(counters)} numbers, not 8 or 9")
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
