"""Parser for /proc/net/rpc/nfs: operations of the NFS client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Sequence

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
