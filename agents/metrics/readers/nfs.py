"""Readers of NFS clients: operations and bytes of all mounts; traffic and latency of each mount."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.counters import Sums
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo
from ccagent.machine.procfs.nfs import (
    NFS3,
    NFS4,
    NfsMount,
    NfsOperationCounters,
    operations4,
    parse_nfs_mounts,
    parse_nfs_operations,
    parse_operations,
    total_operations,
)
from ccagent.machine.sensors import clean_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
        self._operations: dict[str, Sums] = {}
        self._volumes = {version: Sums(2) for version in _VERSIONS}

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read operations and mounts. Raise NotHereError without a client."""
        self.forget_errors()
        found: list[Gauge | Count] = []
        counters = self.try_parsed(node, _OPERATIONS, parse_operations) or {}
        self.require(counters)
        found += self._count_operations(counters)
        try:
            found += self._read_volumes(node)
        except CcagentError as error:
            self.errors.append(str(error))
        return found

    def read_raw(self, node: Node) -> Iterable[Gauge | Count]:
        """Read the operations since boot; bytes are those of `nfs-mounts`."""
        self.forget_errors()
        counters = read_parsed(node, _OPERATIONS, parse_operations)
        found: list[Gauge | Count] = [
            Count(f"nfs{version}_total", sum(counters[f"proc{version}"]))
            for version in _VERSIONS
            if f"proc{version}" in counters
        ]
        if len(counters.get("rpc", ())) > 1:
            found.append(Count("nfs_retrans", counters["rpc"][1]))
        return found

    def _count_operations(self, counters: Mapping[str, Sequence[int]]) -> Iterable[Count]:
        deltas: dict[str, list[int]] = {}
        for line, numbers in counters.items():
            # The counters have 32 bits, see rpc_proc_show() in net/sunrpc/stats.c.
            sums = self._operations.get(line)
            if sums is None or len(sums.total) != len(numbers):
                sums = self._operations[line] = Sums(len(numbers), _WRAPS_AT)
            sums.add({line: numbers})
            deltas[line] = sums.total
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


_MOST_MOUNTS = 1000

_MOVED = (
    ("app_read", "B/s", "bytes read by programs, including cache hits"),
    ("app_write", "B/s", "bytes written by programs, including cached writes"),
    ("direct_read", "B/s", "bytes read by programs with O_DIRECT"),
    ("direct_write", "B/s", "bytes written by programs with O_DIRECT"),
    ("read", "B/s", "bytes from the server"),
    ("write", "B/s", "bytes to the server"),
    ("pages_read", "1/s", "pages read from the server"),
    ("pages_written", "1/s", "pages written to the server"),
)
"""The eight numbers of the line `bytes:`."""

_MEANS = (
    ("queue", "queued", "mean queue time of an operation before transmission", 6),
    ("rtt", "rtt", "mean round-trip time from transmission to reply of an operation", 7),
    ("exec", "execution", "mean time of an operation from request to completion", 8),
)
_CLASSES = {"": "", "read_": "READ", "write_": "WRITE"}
"""Operation by prefix of metrics; no prefix means all operations."""


class NfsMountsSettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.nfs-mounts]."""

    exclude: Annotated[tuple[str, ...], Meta(description="patterns of mount points to skip")] = ()


def _mount_metric(unit: str, description: str, source: str) -> Metric:
    return Metric(
        unit=unit,
        type="node",
        description=f"{description}, by mount (stype filesystem)",
        source=f"/proc/self/mountstats, {source}",
        aggregation="mean" if unit == "s" else "sum",
        is_default=False,
    )


_MOUNT_METRICS: dict[str, Metric] = {
    f"nfs_mount_{name}": _mount_metric(unit, description, f"bytes, number {number}")
    for number, (name, unit, description) in enumerate(_MOVED, 1)
} | {
    "nfs_mount_ops": _mount_metric("1/s", "operations", "all operations, number 1"),
    "nfs_mount_reads": _mount_metric("1/s", "operations READ", "READ, number 1"),
    "nfs_mount_writes": _mount_metric("1/s", "operations WRITE", "WRITE, number 1"),
    "nfs_mount_retrans": _mount_metric(
        "1/s", "repeated transmissions", "all operations, number 2 - number 1"
    ),
    "nfs_mount_timeouts": _mount_metric("1/s", "major timeouts", "all operations, number 3"),
    "nfs_mount_errors": _mount_metric(
        "1/s", "operations that ended with an error, since Linux 5.3", "all operations, number 9"
    ),
    **{
        f"nfs_mount_{prefix}{name}": _mount_metric(
            "s",
            f"{description}{f'; {operation} only' if operation else ''}",
            f"{operation or 'all operations'}, number {number} / number 1",
        )
        for prefix, operation in _CLASSES.items()
        for name, _, description, number in _MEANS
    },
}


_Figures = dict[str, NfsOperationCounters]
"""Counters of a mount by the prefixes of _CLASSES."""


class NfsMountsReader(Reader[NfsMountsSettings]):
    """Each NFS mount by its mount point; read only if a metric is wanted.

    Several mounts of one file system share counters: each has the same values.
    """

    name = "nfs-mounts"
    is_exposed = False
    Settings = NfsMountsSettings
    metrics: ClassVar[dict[str, Metric]] = _MOUNT_METRICS

    def __init__(self, settings: NfsMountsSettings | None = None) -> None:
        super().__init__(settings)
        self._before: dict[str, _Figures] = {}

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read the counters of all mounts. Raise NotHereError without an NFS mount."""
        self.forget_errors()
        if not self.is_wanted:
            return []
        mounts, problems = parse_nfs_mounts(node.read(_STATISTICS))
        if not mounts and not problems:
            raise NotHereError(f"/{_STATISTICS}: no NFS mount")
        chosen = self._choose(mounts)
        before, self._before = self._before, {}
        found: list[Gauge | Count] = []
        for label, mount in chosen.items():
            scope = Scope(stype="filesystem", stype_id=label)
            try:
                figures = _figures(mount)
            except UnparsableError as error:
                problems.append(f"mount {ascii(mount.point)[:80]}: {error}")
                continue
            self._before[label] = figures
            found += _counts(mount, figures, scope)
            if label in before:
                found += _means(before[label], figures, scope)
        if problems:
            more = f"; {len(problems) - 1} more" if len(problems) > 1 else ""
            self.errors.append(f"/{_STATISTICS}: {problems[0]}{more}")
        return found

    def _choose(self, mounts: Iterable[NfsMount]) -> Mapping[str, NfsMount]:
        """Return the visible mounts by label, at most a thousand."""
        chosen: dict[str, NfsMount] = {}
        for mount in mounts:
            label = clean_label(mount.point)
            if not label or any(fnmatchcase(mount.point, each) for each in self.settings.exclude):
                continue
            if len(chosen) == _MOST_MOUNTS and label not in chosen:
                self.errors.append(
                    f"more than {_MOST_MOUNTS} NFS mounts: the others are not read;"
                    " set agents.metrics.nfs-mounts.exclude"
                )
                break
            chosen[label] = mount
        return chosen


def _figures(mount: NfsMount) -> _Figures:
    operations = parse_nfs_operations(mount.table)
    return {
        prefix: operations.get(operation, NfsOperationCounters())
        if operation
        else total_operations(operations.values())
        for prefix, operation in _CLASSES.items()
    }


def _counts(mount: NfsMount, figures: _Figures, scope: Scope) -> Iterator[Count]:
    for (name, _, _), value in zip(_MOVED, mount.moved, strict=True):
        yield Count(f"nfs_mount_{name}", value, scope)
    total = figures[""]
    yield Count("nfs_mount_ops", total.operations, scope)
    yield Count("nfs_mount_reads", figures["read_"].operations, scope)
    yield Count("nfs_mount_writes", figures["write_"].operations, scope)
    yield Count("nfs_mount_retrans", max(0, total.sent - total.operations), scope)
    yield Count("nfs_mount_timeouts", total.timeouts, scope)
    if total.errors is not None:
        yield Count("nfs_mount_errors", total.errors, scope)


def _means(before: _Figures, now: _Figures, scope: Scope) -> Iterator[Gauge]:
    """Yield the mean times of the operations since the last reading; none without operations."""
    for prefix, new in now.items():
        old = before[prefix]
        if new.operations < old.operations:
            old = NfsOperationCounters()  # the file system was unmounted and mounted again
        operations = new.operations - old.operations
        if not operations:
            continue
        for name, field, _, _ in _MEANS:
            milliseconds = max(0, getattr(new, field) - getattr(old, field))
            yield Gauge(f"nfs_mount_{prefix}{name}", milliseconds / operations / 1000, scope)
