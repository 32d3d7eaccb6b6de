"""Reader of NFS clients: operations, and bytes of all mounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Reader, ReaderSettings
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.counters import Sums
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo
from ccagent.machine.procfs.mountstats import parse_nfs_mounts
from ccagent.machine.procfs.nfs import NFS3, NFS4, operations4, parse_operations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node

_OPERATIONS = "proc/net/rpc/nfs"
_STATISTICS = "proc/self/mountstats"
_WRAPS_AT = 0xFFFF_FFFF
_SERVER_READ, _SERVER_WRITTEN = 4, 5

_VERSIONS = {3: NFS3, 4: NFS4}


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
        mounts, problems = parse_nfs_mounts(node.read(_STATISTICS))
        self.errors += [f"/{_STATISTICS}: {problem}" for problem in problems[:1]]
        for mount in mounts:
            # All mounts of a file system have the same counters and the same device.
            here = devices.get(mount.point)
            device = here.pop(0) if here else mount.source
            if mount.version in volumes:
                moved = mount.moved[_SERVER_READ], mount.moved[_SERVER_WRITTEN]
                volumes[mount.version][device] = moved
        for version, of_version in volumes.items():
            self._volumes[version].add(of_version)
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
