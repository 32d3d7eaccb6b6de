"""The collectors of NFS: nfs (client), nfsd (server), mountstats (mounts of the client)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.exporter.exposition import counter, gauge
from ccagent.log import logger
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo
from ccagent.machine.procfs.nfs import (
    NFS2,
    NFS3,
    NFSD4,
    operations4,
    parse_nfs_details,
    parse_nfs_mounts,
    parse_nfs_operations,
    parse_operations,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.exposition import Family, FamilyRows, Labels
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.nfs import NfsMount, NfsMountDetails


_RPCS = counter("node_nfs_rpcs_total", "Total number of RPCs performed.")
_RETRANSMISSIONS = counter(
    "node_nfs_rpc_retransmissions_total", "Number of RPC transmissions performed."
)
_REFRESHES = counter(
    "node_nfs_rpc_authentication_refreshes_total",
    "Number of RPC authentication refreshes performed.",
)
_PACKETS = counter(
    "node_nfs_packets_total",
    "Total NFSd network packets (sent+received) by protocol type.", "protocol",
)  # fmt: skip
_CONNECTIONS = counter("node_nfs_connections_total", "Total number of NFSd TCP connections.")
_REQUESTS = counter(
    "node_nfs_requests_total", "Number of NFS procedures invoked.", "proto", "method"
)
_OPERATIONS = {2: NFS2, 3: NFS3}
_V3 = {
    "readdirplus": "ReadDirPlus", "fsstat": "FsStat", "fsinfo": "FsInfo", "pathconf": "PathConf",
    "readlink": "ReadLink", "mkdir": "MkDir", "symlink": "SymLink", "mknod": "MkNod",
    "rmdir": "RmDir", "readdir": "ReadDir", "getattr": "GetAttr", "setattr": "SetAttr",
    "wrcache": "WrCache",
}  # fmt: skip
_V4 = {
    "fsinfo": "FsInfo", "setclientid": "SetClientID", "setclientid_confirm": "SetClientIDConfirm",
    "statfs": "StatFs", "readlink": "ReadLink", "readdir": "ReadDir",
    "delegreturn": "DelegReturn", "getacl": "GetACL", "setacl": "SetACL",
    "exchange_id": "ExchangeID", "layoutget": "LayoutGet", "getdeviceinfo": "GetDeviceInfo",
    "layoutcommit": "LayoutCommit", "layoutreturn": "LayoutReturn", "test_stateid": "TestStateID",
    "free_stateid": "FreeStateID", "getdevicelist": "GetDeviceList",
    "destroy_clientid": "DestroyClientID", "deallocate": "DeAllocate",
    "layoutstats": "LayoutStats",
}  # fmt: skip


def read_nfs(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/net/rpc/nfs: operations of the NFS client by version."""
    found = read_parsed(node, "proc/net/rpc/nfs", parse_operations)
    network = found.get("net", [])
    if len(network) >= 4:
        yield _PACKETS, [(("udp",), network[1]), (("tcp",), network[2])]
        yield _CONNECTIONS, [((), network[3])]
    rpc = found.get("rpc", [])
    for family, value in zip((_RPCS, _RETRANSMISSIONS, _REFRESHES), rpc, strict=False):
        yield family, [((), value)]
    rows: list[tuple[Labels, float]] = []
    for version in (2, 3, 4):
        numbers = found.get(f"proc{version}", [])
        names = _OPERATIONS.get(version) or operations4(len(numbers))
        for name, number in zip(names, numbers, strict=False):
            rows.append(((str(version), name_method(name, version)), number))
    yield _REQUESTS, rows


def name_method(operation: str, version: int) -> str:
    """Return node_exporter's name of an operation: `GetAttr` of version 3, `Getattr` of 4."""
    special = (_V4 if version == 4 else _V3).get(operation)
    return special or "".join(word.capitalize() for word in operation.split("_"))


_SERVER: tuple[tuple[str, int, Family], ...] = (
    ("rc", 0, counter("node_nfsd_reply_cache_hits_total",
        "Total number of NFSd Reply Cache hits (client lost server response).")),
    ("rc", 1, counter("node_nfsd_reply_cache_misses_total",
        "Total number of NFSd Reply Cache an operation that requires caching (idempotent).")),
    ("rc", 2, counter("node_nfsd_reply_cache_nocache_total",
        "Total number of NFSd Reply Cache non-idempotent operations (rename/delete/…).")),
    ("fh", 0, counter("node_nfsd_file_handles_stale_total",
        "Total number of NFSd stale file handles")),
    ("io", 0, counter("node_nfsd_disk_bytes_read_total", "Total NFSd bytes read.")),
    ("io", 1, counter("node_nfsd_disk_bytes_written_total", "Total NFSd bytes written.")),
    ("th", 0, gauge("node_nfsd_server_threads",
        "Total number of NFSd kernel threads that are running.")),
    ("ra", 0, gauge("node_nfsd_read_ahead_cache_size_blocks",
        "How large the read ahead cache is in blocks.")),
    ("ra", 11, counter("node_nfsd_read_ahead_cache_not_found_total",
        "Total number of NFSd read ahead cache not found.")),
    ("net", 3, counter("node_nfsd_connections_total", "Total number of NFSd TCP connections.")),
    ("rpc", 0, counter("node_nfsd_server_rpcs_total", "Total number of NFSd RPCs.")),
)  # fmt: skip
"""Line, position in it, and family."""
_SERVER_PACKETS = counter(
    "node_nfsd_packets_total",
    "Total NFSd network packets (sent+received) by protocol type.", "proto",
)  # fmt: skip
_SERVER_ERRORS = counter(
    "node_nfsd_rpc_errors_total", "Total number of NFSd RPC errors by error type.", "error"
)
_SERVER_REQUESTS = counter(
    "node_nfsd_requests_total",
    "Total number NFSd Requests by method and protocol.", "proto", "method",
)  # fmt: skip
_SERVER_V4 = {
    "getattr": "GetAttr", "getfh": "GetFH", "delegpurge": "DelegPurge",
    "delegreturn": "DelegReturn", "lookupp": "LookupRoot", "openattr": "OpenAttr",
    "open_downgrade": "OpenDgrd", "putfh": "PutFH", "readdir": "ReadDir",
    "readlink": "ReadLink", "restorefh": "RestoreFH", "savefh": "SaveFH", "secinfo": "SecInfo",
    "setattr": "SetAttr", "setclientid": "SetClientID",
    "setclientid_confirm": "SetClientIDConfirm", "release_lockowner": "RelLockOwner",
}  # fmt: skip
"""node_exporter's names, where they differ from `open_confirm`: `OpenConfirm`."""


def read_nfsd(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/net/rpc/nfsd: operations of the NFS server. NotHereError without one."""
    found = read_parsed(node, "proc/net/rpc/nfsd", parse_operations)
    for line, position, family in _SERVER:
        numbers = found.get(line, [])
        if position < len(numbers):
            yield family, [((), numbers[position])]
    network, rpc = found.get("net", []), found.get("rpc", [])
    if len(network) >= 4:
        yield _SERVER_PACKETS, [(("udp",), network[1]), (("tcp",), network[2])]
    kinds = zip(("fmt", "auth", "cInt"), rpc[2:5], strict=False)
    yield _SERVER_ERRORS, [((kind,), number) for kind, number in kinds]
    rows: list[tuple[Labels, float]] = []
    for version, names in _OPERATIONS.items():
        numbers = found.get(f"proc{version}", [])
        rows += [
            ((str(version), name_method(name, version)), number)
            for name, number in zip(names[1:], numbers[1:], strict=False)
        ]
    by_number = found.get("proc4ops", [])
    for number, name in NFSD4.items():
        if number < len(by_number):
            method = _SERVER_V4.get(name) or name_method(name, 4)
            rows.append((("4", method), by_number[number]))
    if delegations := found.get("wdeleg_getattr"):
        rows.append((("4", "WdelegGetattr"), delegations[0]))
    yield _SERVER_REQUESTS, rows


_MOUNT = ("export", "protocol", "mountaddr")
_PREFIX = "node_mountstats_nfs"
_INFO = gauge(
    f"{_PREFIX}_mountpoint_info", "Info metric for an NFS mountpoint.", *_MOUNT, "mountpoint"
)
_AGE = counter(f"{_PREFIX}_age_seconds_total", "The age of the NFS mount in seconds.", *_MOUNT)
_MOVED = tuple(
    counter(f"{_PREFIX}_{name}_total", text, *_MOUNT)
    for name, text in (
        ("read_bytes", "Number of bytes read using the read() syscall."),
        ("write_bytes", "Number of bytes written using the write() syscall."),
        ("direct_read_bytes", "Number of bytes read using the read() syscall in O_DIRECT mode."),
        ("direct_write_bytes",
            "Number of bytes written using the write() syscall in O_DIRECT mode."),
        ("total_read_bytes", "Number of bytes read from the NFS server, in total."),
        ("total_write_bytes", "Number of bytes written to the NFS server, in total."),
        ("read_pages", "Number of pages read directly via mmap()'d files."),
        ("write_pages", "Number of pages written directly via mmap()'d files."),
    )
)  # fmt: skip
"""Families of NfsMount.moved."""
_EVENTS = tuple(
    counter(f"{_PREFIX}_event_{name}_total", text, *_MOUNT) if name else None
    for name, text in (
        ("inode_revalidate",
            "Number of times cached inode attributes are re-validated from the server."),
        ("dnode_revalidate",
            "Number of times cached dentry nodes are re-validated from the server."),
        ("data_invalidate", "Number of times an inode cache is cleared."),
        ("attribute_invalidate", "Number of times cached inode attributes are invalidated."),
        ("vfs_open", "Number of times cached inode attributes are invalidated."),
        ("vfs_lookup", "Number of times a directory lookup has occurred."),
        ("vfs_access", "Number of times permissions have been checked."),
        ("vfs_update_page", "Number of updates (and potential writes) to pages."),
        ("vfs_read_page", "Number of pages read directly via mmap()'d files."),
        ("vfs_read_pages", "Number of times a group of pages have been read."),
        ("vfs_write_page", "Number of pages written directly via mmap()'d files."),
        ("vfs_write_pages", "Number of times a group of pages have been written."),
        ("vfs_getdents",
            "Number of times directory entries have been read with getdents()."),
        ("vfs_setattr",
            "Number of times directory entries have been read with getdents()."),
        ("vfs_flush",
            "Number of pending writes that have been forcefully flushed to the server."),
        ("vfs_fsync", "Number of times fsync() has been called on directories and files."),
        ("vfs_lock", "Number of times locking has been attempted on a file."),
        ("vfs_file_release", "Number of times files have been closed and released."),
        ("", ""),  # congestion_wait, which node_exporter leaves out
        ("truncation", "Number of times files have been truncated."),
        ("write_extension",
            "Number of times a file has been grown due to writes beyond its existing end."),
        ("silly_rename",
            "Number of times a file was removed while still open by another process."),
        ("short_read",
            "Number of times the NFS server gave less data than expected while reading."),
        ("short_write",
            "Number of times the NFS server wrote less data than expected while writing."),
        ("jukebox_delay",
            ("Number of times the NFS server indicated EJUKEBOX; retrieving data from offline"
            " storage.")),
        ("pnfs_read", "Number of NFS v4.1+ pNFS reads."),
        ("pnfs_write", "Number of NFS v4.1+ pNFS writes."),
    )
)  # fmt: skip
"""Families of the events in the order of include/linux/nfs_iostat.h of Linux."""
_TRANSPORT: tuple[tuple[str, Family], ...] = tuple(
    (field, make(f"{_PREFIX}_transport_{name}", text, *_MOUNT, "transport"))
    for field, make, name, text in (
        ("binds", counter, "bind_total", ("Number of times the client has had to establish a"
            " connection from scratch to the NFS server.")),
        ("connects", counter, "connect_total",
            "Number of times the client has made a TCP connection to the NFS server."),
        ("idle", gauge, "idle_time_seconds",
            "Duration since the NFS mount last saw any RPC traffic, in seconds."),
        ("sends", counter, "sends_total",
            "Number of RPC requests for this mount sent to the NFS server."),
        ("receives", counter, "receives_total",
            "Number of RPC responses for this mount received from the NFS server."),
        ("bad_ids", counter, "bad_transaction_ids_total", ("Number of times the NFS server sent a"
            " response with a transaction ID unknown to this client.")),
        ("backlog", counter, "backlog_queue_total",
            "Total number of items added to the RPC backlog queue."),
        ("slots", gauge, "maximum_rpc_slots",
            "Maximum number of simultaneously active RPC requests ever used."),
        ("sending", counter, "sending_queue_total",
            "Total number of items added to the RPC transmission sending queue."),
        ("pending", counter, "pending_queue_total",
            "Total number of items added to the RPC transmission pending queue."),
    )
)  # fmt: skip
_BY_OPERATION: tuple[tuple[str, int, Family], ...] = tuple(
    (field, divisor, counter(f"{_PREFIX}_operations_{name}_total", text, *_MOUNT, "operation"))
    for field, divisor, name, text in (
        ("operations", 1, "requests", "Number of requests performed for a given operation."),
        ("sent", 1, "transmissions", ("Number of times an actual RPC request has been transmitted"
            " for a given operation.")),
        ("timeouts", 1, "major_timeouts",
            "Number of times a request has had a major timeout for a given operation."),
        ("bytes_sent", 1, "sent_bytes", ("Number of bytes sent for a given operation, including"
            " RPC headers and payload.")),
        ("bytes_received", 1, "received_bytes", ("Number of bytes received for a given operation,"
            " including RPC headers and payload.")),
        ("queued", 1000, "queue_time_seconds", ("Duration all requests spent queued for"
            " transmission for a given operation before they were sent, in seconds.")),
        ("rtt", 1000, "response_time_seconds", ("Duration all requests took to get a reply back"
            " after a request for a given operation was transmitted, in seconds.")),
        ("execution", 1000, "request_time_seconds", ("Duration all requests took from when a"
            " request was enqueued to when it was completely handled for a given operation,"
            " in seconds.")),
    )
)  # fmt: skip
"""Field of NfsOperationCounters, its divisor, and family."""


def read_mountstats(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/self/mountstats. Mounts of the same export share their series."""
    mounts, problems = read_parsed(node, "proc/self/mountstats", parse_nfs_mounts)
    addresses = {
        (mount.source, mount.point): mount.option("addr")
        for mount in read_parsed(node, MOUNTINFO, parse_mountinfo)
        if mount.type.startswith("nfs")
    }
    rows: dict[Family, dict[Labels, float]] = {}
    for mount in mounts:
        try:
            details = parse_nfs_details(mount.head)
        except CcagentError as error:
            problems.append(f"mount {ascii(mount.point)[:80]}: {error}")
            continue
        address = addresses.get((mount.source, mount.point), "")
        labels = (mount.source, details.transports[0].protocol, address)
        rows.setdefault(_INFO, {})[(*labels, mount.point)] = 1
        if labels not in rows.setdefault(_AGE, {}):
            for family, more, value in _mount_rows(mount, details):
                rows.setdefault(family, {})[(*labels, *more)] = value
    for problem in problems:
        logger.warning("exporter: mountstats: %s", problem)
    for family, of_family in rows.items():
        yield family, of_family.items()


def _mount_rows(
    mount: NfsMount, details: NfsMountDetails
) -> Iterator[tuple[Family, Labels, float]]:
    """Yield the values of a mount, with the labels after its own. Raise UnparsableError."""
    yield _AGE, (), details.age
    for family, number in zip(_MOVED, mount.moved, strict=True):
        yield family, (), number
    for event, number in zip(_EVENTS, details.events, strict=False):
        if event is not None:
            yield event, (), number
    for index, transport in enumerate(details.transports):
        for field, family in _TRANSPORT:
            value: int | None = getattr(transport, field)
            if value is not None:
                yield family, (str(index),), value
    for operation, counters in parse_nfs_operations(mount.table).items():
        for field, divisor, family in _BY_OPERATION:
            number = getattr(counters, field)
            yield family, (operation,), number / divisor if divisor > 1 else number
