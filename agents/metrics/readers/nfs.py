"""Reader of NFS clients: operations, and bytes of all mounts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.metrics.pipeline.sums import Sums
from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Reader, ReaderSettings
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo, unescape_name
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccagent.machine.node import Node

_OPERATIONS = "proc/net/rpc/nfs"
_STATISTICS = "proc/self/mountstats"
_WRAPS_AT = 0xFFFF_FFFF
_MOUNT = re.compile(rb"(?:device )?(\S+) mounted on (\S+) with fstype nfs(4?) ")
_VERSION = re.compile(rb"p/v: 100003/(\d)")
_SERVER_READ, _SERVER_WRITTEN = 4, 5

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

_VERSIONS = {3: NFS3, 4: NFS4}


class Volume(NamedTuple):
    """Traffic of a mount: B from and to the server since the mount."""

    source: str
    point: str
    version: int
    read: int
    written: int


def parse_operations(content: bytes) -> dict[str, list[int]]:
    """Parse /proc/net/rpc/nfs: `rpc` (calls, retransmissions, ...), `proc3`, `proc4`, by number.

    In a line `proc4 2 0 17` the first number is the count of the rest. Raise UnparsableError.
    """
    counters: dict[str, list[int]] = {}
    for line in content.split(b"\n"):
        words = line.split()
        if not words or (words[0] != b"rpc" and not words[0].startswith(b"proc")):
            continue
        try:
            numbers = [int(word) for word in words[1:]]
        except ValueError as error:
            raise UnparsableError(f"not a number: {line[:80]!r}") from error
        if numbers and (min(numbers) < 0 or max(numbers) > LARGEST_UINT):
            raise UnparsableError(f"out of range: {line[:80]!r}")
        if words[0] != b"rpc":
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


def parse_mountstats(content: bytes) -> list[Volume]:
    """Parse the NFS mounts in /proc/self/mountstats, see nfs_show_stats(). Raise UnparsableError.

    The fifth and sixth number of a line `bytes:` are network traffic, read-ahead and mapped files
    included.
    """
    volumes: list[Volume] = []
    for block in content.split(b"\ndevice "):
        mount = _MOUNT.match(block)
        if mount is None:
            continue
        _, label, rest = block.partition(b"\tbytes:")
        if not label:
            continue
        words = rest.partition(b"\n")[0].split()
        version = _VERSION.search(rest)
        try:
            moved = int(words[_SERVER_READ]), int(words[_SERVER_WRITTEN])
        except (ValueError, IndexError) as error:
            raise UnparsableError(f"not bytes: {rest[:80]!r}") from error
        if min(moved) < 0 or max(moved) > LARGEST_UINT:
            raise UnparsableError(f"out of range: {rest[:80]!r}")
        number = int(version[1]) if version else 4 if mount[3] else 3
        volumes.append(Volume(_name(mount[1]), _name(mount[2]), number, *moved))
    return volumes


def _name(text: bytes) -> str:
    return unescape_name(text.decode("utf-8", "surrogateescape"))


def _metric(version: int, operation: str) -> str:
    """Return the metric of an operation: nfs4_reads, because nfs4_read is a metric of bytes."""
    plural = "s" if operation in {"read", "write"} else ""
    return f"nfs{version}_{operation}{plural}"


_METRICS = {
    (version, operation): _metric(version, operation)
    for version, operations in _VERSIONS.items()
    for operation in operations
}


class NfsReader(Reader[ReaderSettings]):
    """NFS of versions 3 and 4: operations of the node, bytes summed over its file systems."""

    name = "nfs"
    metrics: ClassVar[dict[str, Metric]] = {
        **{
            f"nfs{version}_{direction}": Metric(
                unit="B/s",
                type="node",
                description=f"bytes {what} servers of NFSv{version}, all mounts",
                source=f"/proc/self/mountstats, bytes, number {number + 1}",
            )
            for version in _VERSIONS
            for direction, what, number in (
                ("read", "from", _SERVER_READ),
                ("write", "to", _SERVER_WRITTEN),
            )
        },
        **{
            f"nfs{version}_total": Metric(
                unit="1/s",
                type="node",
                description=f"all operations of NFSv{version}",
                source=f"/proc/net/rpc/nfs, proc{version}",
            )
            for version in _VERSIONS
        },
        "nfs_retrans": Metric(
            unit="1/s",
            type="node",
            description="requests retransmitted after a timeout",
            source="/proc/net/rpc/nfs, rpc, number 2",
        ),
        **{
            _metric(version, operation): Metric(
                unit="1/s",
                type="node",
                description=f"operations {operation} of NFSv{version}",
                source=f"/proc/net/rpc/nfs, proc{version}",
                is_default=False,
            )
            for version, operations in _VERSIONS.items()
            for operation in operations[1:]
        },
    }

    def __init__(self, settings: ReaderSettings | None = None) -> None:
        super().__init__(settings)
        self._operations: dict[tuple[str, int], Sums] = {}
        self._volumes = {version: Sums(2) for version in _VERSIONS}

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read operations and mounts. Raise NotHereError without a client."""
        self.errors = []
        found: list[Gauge | Count] = []
        try:
            found += self._read_operations(node)
        except NotHereError:
            raise
        except CcagentError as error:
            self.errors.append(str(error))
        try:
            found += self._read_volumes(node)
        except CcagentError as error:
            self.errors.append(str(error))
        return found

    def read_raw(self, node: Node) -> Iterable[Gauge | Count]:
        """Read the operations since boot; bytes are those of `nfs-mounts`."""
        self.errors = []
        counters = read_parsed(node, _OPERATIONS, parse_operations)
        found: list[Gauge | Count] = [
            Count(f"nfs{version}_total", sum(counters[f"proc{version}"]))
            for version in _VERSIONS
            if f"proc{version}" in counters
        ]
        if len(counters.get("rpc", ())) > 1:
            found.append(Count("nfs_retrans", counters["rpc"][1]))
        return found

    def _read_operations(self, node: Node) -> Iterable[Count]:
        counters = read_parsed(node, _OPERATIONS, parse_operations)
        deltas: dict[str, list[int]] = {}
        for line, numbers in counters.items():
            # The counters have 32 bits, see rpc_proc_show() in net/sunrpc/stats.c.
            key = (line, len(numbers))
            if key not in self._operations:
                self._operations = {
                    other: sums for other, sums in self._operations.items() if other[0] != line
                }
                self._operations[key] = Sums(len(numbers), _WRAPS_AT)
            self._operations[key].add({line: numbers})
            deltas[line] = self._operations[key].total
        wanted = self.wanted
        for version in _VERSIONS:
            totals = deltas.get(f"proc{version}")
            if totals is None:
                continue
            names = NFS3 if version == 3 else operations4(len(totals))
            yield Count(f"nfs{version}_total", sum(totals))
            for operation, total in zip(names[1:], totals[1:], strict=False):
                metric = _METRICS[version, operation]
                if wanted is None or metric in wanted:
                    yield Count(metric, total)
        if len(deltas.get("rpc", ())) > 1:
            yield Count("nfs_retrans", deltas["rpc"][1])

    def _read_volumes(self, node: Node) -> Iterable[Count]:
        devices = self._devices(node)
        volumes: dict[int, dict[str, tuple[int, int]]] = {version: {} for version in _VERSIONS}
        for volume in read_parsed(node, _STATISTICS, parse_mountstats):
            # All mounts of a file system have the same counters and the same device.
            here = devices.get(volume.point)
            device = here.pop(0) if here else volume.source
            if volume.version in volumes:
                volumes[volume.version][device] = (volume.read, volume.written)
        for version, moved in volumes.items():
            self._volumes[version].add(moved)
            read, written = self._volumes[version].total
            yield Count(f"nfs{version}_read", read)
            yield Count(f"nfs{version}_write", written)

    def _devices(self, node: Node) -> dict[str, list[str]]:
        """Return the NFS devices by mount point; several mounts may share a mount point."""
        devices: dict[str, list[str]] = {}
        try:
            for mount in read_parsed(node, MOUNTINFO, parse_mountinfo):
                if mount.type in {"nfs", "nfs4"}:
                    devices.setdefault(mount.point, []).append(mount.device)
        except CcagentError as error:
            self.errors.append(str(error))
        return devices
