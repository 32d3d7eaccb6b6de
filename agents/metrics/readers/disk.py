"""Readers of local disks, and of space and inodes of local file systems.

Source: Documentation/admin-guide/iostats.rst of Linux. Its field 1 is index 0 here.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from msgspec import Meta

from ccagent.agents.metrics.readers.base import (
    NODE,
    Count,
    Gauge,
    Metric,
    Reader,
    ReaderSettings,
    Scope,
)
from ccagent.config.duration import Duration
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.counters import Sums, compute_deltas
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, Mount, parse_visible_mounts
from ccagent.machine.procfs.system import parse_diskstats
from ccagent.machine.space import SpaceQueries, escape

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ccagent.machine.node import Node

_SECTOR = 512
_IN_PROGRESS = 8
_WRAPS_AT = 0xFFFF_FFFF
"""The kernel counts milliseconds in unsigned int."""

LOCAL = (
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "reiserfs", "xfs", "zfs",
)  # fmt: skip
"""Types of file systems on disks. Images (squashfs, iso9660...) are excluded: always full."""

_MOST_HANGING = 32

_STATISTICS = "proc/diskstats"
_DISKS = "sys/block"
_READS, _SECTORS_READ, _WRITES, _SECTORS_WRITTEN, _BUSY = 0, 2, 4, 6, 9
_METRICS = ("disk_read", "disk_write", "disk_reads", "disk_writes")
_NO_DISK = re.compile(r"(sr|fd)\d+")
_PATH = re.compile(r"(nvme\d+)c\d+(n\d+)")


class Rate(NamedTuple):
    """Metric computed as a rate: index of the counter, factor."""

    metric: str
    value: int
    scale: float = 1.0


class TimeEach(NamedTuple):
    """Metric computed as mean time of a request: indices of milliseconds and of requests."""

    metric: str
    milliseconds: int
    requests: int


_RATES = (
    Rate("disk_reads_merged", 1),
    Rate("disk_writes_merged", 5),
    Rate("disk_queue", 10, 1e-3),
    Rate("disk_discards", 11),
    Rate("disk_discard", 13, _SECTOR),
    Rate("disk_flushes", 15),
)
_TIMES = (
    TimeEach("disk_read_time", 3, 0),
    TimeEach("disk_write_time", 7, 4),
    TimeEach("disk_discard_time", 14, 11),
    TimeEach("disk_flush_time", 16, 15),
)


def _metric(unit: str, description: str, source: str) -> Metric:
    return Metric(
        unit=unit,
        type="node",
        description=f"{description}; with by-device",
        source=f"/proc/diskstats, {source}",
        aggregation="mean" if unit == "s" else "sum",
    )


REQUEST_METRICS: dict[str, Metric] = {
    "disk_reads_merged": _metric("1/s", "reads merged with another", "field 2"),
    "disk_writes_merged": _metric("1/s", "writes merged with another", "field 6"),
    "disk_read_time": _metric("s",
        "mean time of a read from request to completion; none without reads", "field 4 / field 1"),
    "disk_write_time": _metric("s",
        "mean time of a write from request to completion; none without writes",
        "field 8 / field 5"),
    "disk_in_progress": _metric("", "requests in progress, current value", "field 9"),
    "disk_queue": _metric("", "requests in progress, mean", "field 11"),
    "disk_discards": _metric("1/s", "discards completed", "field 12"),
    "disk_discard": _metric("B/s", "bytes discarded", "field 14 * 512"),
    "disk_discard_time": _metric("s", "mean time of a discard; none without discards",
        "field 15 / field 12"),
    "disk_flushes": _metric("1/s", "flushes completed", "field 16"),
    "disk_flush_time": _metric("s", "mean time of a flush; none without flushes",
        "field 17 / field 16"),
}  # fmt: skip


def request_figures(delta: Sequence[int], seconds: float) -> dict[str, float]:
    """Return the metrics computed from the deltas of a disk's values over `seconds`.

    Older kernels have 11 or 15 of the 17 values; metrics of missing values are omitted.
    """
    found = {
        metric: delta[value] * scale / seconds
        for metric, value, scale in _RATES
        if value < len(delta)
    }
    for metric, milliseconds, requests in _TIMES:
        if max(milliseconds, requests) < len(delta) and delta[requests]:
            found[metric] = delta[milliseconds] / delta[requests] / 1000
    return found


class DiskRequests:
    """Computes metrics of each disk and of all disks together from two readings."""

    def __init__(self) -> None:
        self._before: Mapping[str, Sequence[int]] = {}

    def add(self, disks: Mapping[str, Sequence[int]], seconds: float) -> list[Gauge]:
        """Return the metrics since the last reading; the metrics of the node come last.

        disks: all values by name, at least eleven. A new disk has only current values.
        """
        before, self._before = self._before, disks
        found: list[Gauge] = []
        deltas: list[list[int]] = []
        for name in sorted(disks):
            scope, new = device_scope(name), disks[name]
            found.append(Gauge("disk_in_progress", new[_IN_PROGRESS], scope))
            old = before.get(name)
            if seconds <= 0 or old is None or len(old) != len(new):
                continue
            delta = compute_disk_deltas(old, new)
            deltas.append(delta)
            figures = request_figures(delta, seconds)
            found += (Gauge(metric, figure, scope) for metric, figure in figures.items())
        found.append(Gauge("disk_in_progress", sum(new[_IN_PROGRESS] for new in disks.values())))
        if deltas:
            total = [sum(column) for column in zip(*deltas, strict=False)]
            figures = request_figures(total, seconds)
            found += (Gauge(metric, figure, NODE) for metric, figure in figures.items())
        return found


def compute_disk_deltas(old: Sequence[int], new: Sequence[int]) -> list[int]:
    """Return the deltas of a disk's values; 0 for requests in progress (a gauge)."""
    before, after = list(old), list(new)
    before[_IN_PROGRESS] = after[_IN_PROGRESS] = 0
    return compute_deltas(before, after, _WRAPS_AT)


def device_scope(name: str) -> Scope:
    """Return the scope of a disk."""
    return Scope(stype="disk", stype_id=name)


def choose_disks(
    disks: Mapping[str, Collection[str]], include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> set[str]:
    """Return the disks that count.

    disks: by disk, the file names of its directory in /sys/block.

    Partitions have no directory there; dm, md, loop, RAM disks and zram have no `device`. Optical
    and floppy drives do not count. `include` and `exclude`: patterns of names.
    """
    names = {
        name
        for name, files in disks.items()
        if ("device" in files and not _NO_DISK.fullmatch(name)) or _matches(name, include)
    }
    for name in tuple(names):
        # Paths to an NVMe namespace. Since Linux 6.1 the namespace counts their requests.
        path = _PATH.fullmatch(name)
        if path is not None and path[1] + path[2] in names:
            names.remove(name)
    return {name for name in names if not _matches(name, exclude)}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class DiskSettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.disk]."""

    include: Annotated[
        tuple[str, ...], Meta(description="patterns of additional devices to count")
    ] = ()
    exclude: Annotated[tuple[str, ...], Meta(description="patterns of disks to ignore")] = ()
    by_device: Annotated[
        bool,
        Meta(
            description="also send values of each disk (stype=disk, stype-id=NAME), and merged"
            " requests, their time, queues, discards and flushes"
        ),
    ] = False


class DiskReader(Reader[DiskSettings]):
    """Bytes and transfers of the node's disks; utilisation of the busiest disk.

    Optionally values of each disk and metrics of requests.
    """

    name = "disk"
    Settings = DiskSettings
    metrics: ClassVar[dict[str, Metric]] = {
        "disk_read": Metric("B/s", "node", "bytes read, all disks",
            "/proc/diskstats, sectors read * 512"),
        "disk_write": Metric("B/s", "node", "bytes written, all disks",
            "/proc/diskstats, sectors written * 512"),
        "disk_reads": Metric("1/s", "node", "reads completed, all disks",
            "/proc/diskstats, reads completed"),
        "disk_writes": Metric("1/s", "node", "writes completed, all disks",
            "/proc/diskstats, writes completed"),
        "disk_busy": Metric("%", "node",
            "share of time in which the busiest disk had requests; a disk with parallel"
            " requests is not necessarily saturated at 100",
            "/proc/diskstats, time spent doing I/Os", aggregation="max"),
        **REQUEST_METRICS,
    }  # fmt: skip

    def __init__(self, settings: DiskSettings | None = None) -> None:
        super().__init__(settings)
        self._sums = Sums(len(_METRICS))
        self._busy = Sums(1)
        self._requests = DiskRequests()
        self._moment: float | None = None
        self._seen: set[str] = set()
        self._chosen: set[str] = set()
        if not self.settings.by_device:
            self.absent = dict.fromkeys(REQUEST_METRICS, "disk.by-device is off")

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read /proc/diskstats, and /sys/block after disks have changed."""
        now = node.clock.monotonic()
        disks = self._read_disks(node)
        if not disks:
            if self.errors:
                return []
            raise NotHereError(f"/{_STATISTICS}: no disk among {sorted(self._seen)}")
        self._sums.add({name: _transfers(stats) for name, stats in disks.items()})
        deltas = self._busy.add({name: (stats[_BUSY],) for name, stats in disks.items()})
        seconds = 0.0 if self._moment is None else now - self._moment
        self._moment = now
        shares: dict[str, float] = {}
        if seconds > 0:
            shares = {name: min(100.0, delta[0] / seconds / 10) for name, delta in deltas.items()}
        found: list[Gauge | Count] = []
        if self.settings.by_device:
            for name in disks:
                found += _counts(self._sums.parts[name], device_scope(name))
            found += (Gauge("disk_busy", shares[name], device_scope(name)) for name in shares)
            found += self._requests.add(disks, seconds)
        found += _counts(self._sums.total, NODE)
        if shares:
            found.append(Gauge("disk_busy", max(shares.values())))
        return found

    def read_raw(self, node: Node) -> Iterable[Gauge | Count]:
        """Read the counters of each disk since boot."""
        found: list[Gauge | Count] = []
        for name, stats in self._read_disks(node).items():
            found += _counts(_transfers(stats), device_scope(name))
            # Hundredths of a second: 100 in a second are 100 %.
            found.append(Count("disk_busy", stats[_BUSY] // 10, device_scope(name)))
        return found

    def _read_disks(self, node: Node) -> dict[str, list[int]]:
        """Return the values of the disks that count, by name. A damaged one adds to `errors`."""
        self.forget_errors()
        disks = {
            disk.name: disk.stats
            for disk in read_parsed(node, _STATISTICS, parse_diskstats)
            if any(disk.stats)  # not of loop devices, for example
        }
        self._choose(node, disks.keys())
        found: dict[str, list[int]] = {}
        for name in sorted(self._chosen):
            if len(disks[name]) > _BUSY:
                found[name] = disks[name]
            else:
                self.errors.append(f"/{_STATISTICS}: {name!r}: only {len(disks[name])} values")
        return found

    def _choose(self, node: Node, names: Collection[str]) -> None:
        if names == self._seen:
            return
        directories: dict[str, list[str]] = {}
        for name in names:
            # The directory of cciss/c0d0 is cciss!c0d0.
            files = self.try_list(node, f"{_DISKS}/{name.replace('/', '!')}")
            if files:
                directories[name] = files
        self._chosen = choose_disks(directories, self.settings.include, self.settings.exclude)
        self._seen = set(names)


def _transfers(stats: Sequence[int]) -> list[int]:
    """Return the numbers of _METRICS: bytes read and written, reads, writes."""
    read, written = stats[_SECTORS_READ] * _SECTOR, stats[_SECTORS_WRITTEN] * _SECTOR
    return [read, written, stats[_READS], stats[_WRITES]]


def _counts(values: list[int], scope: Scope) -> Iterable[Count]:
    return (Count(metric, value, scope) for metric, value in zip(_METRICS, values, strict=True))


class Space(NamedTuple):
    """Result of statvfs(3). size, free (for users), used: B. inodes: 0 without a limit."""

    size: int
    free: int
    used: int
    inodes: int
    inodes_used: int


def local_mounts(
    mounts: Iterable[Mount], types: Collection[str], exclude: Sequence[str]
) -> list[Mount]:
    """Return one mount of each file system of these types. exclude: patterns of mount points.

    Only the last of several mounts at one point is visible. Datasets of a ZFS pool share its space.
    """
    reachable = {mount.point: mount for mount in mounts}
    found: dict[str, Mount] = {}
    for mount in reachable.values():
        if mount.type in types and not _matches(mount.point, exclude):
            is_zfs = mount.type == "zfs"
            found.setdefault(mount.source.partition("/")[0] if is_zfs else mount.device, mount)
    return list(found.values())


def space_of(answer: os.statvfs_result) -> Space:
    """Return space as df(1) computes it."""
    unit = answer.f_frsize or answer.f_bsize
    return Space(
        size=answer.f_blocks * unit,
        free=answer.f_bavail * unit,
        used=max(0, answer.f_blocks - answer.f_bfree) * unit,
        inodes=answer.f_files,
        inodes_used=max(0, answer.f_files - answer.f_ffree),
    )


class FilesystemSettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.filesystem]."""

    types: Annotated[tuple[str, ...], Meta(description="types of file systems to count")] = LOCAL
    exclude: Annotated[tuple[str, ...], Meta(description="patterns of mount points to ignore")] = (
        "/boot",
        "/boot/*",
    )
    time_limit: Annotated[
        Duration,
        Meta(description="time after which a hung file system is skipped until it answers"),
    ] = Duration("1s")


class FilesystemReader(Reader[FilesystemSettings]):
    """Space of the node, and use of its fullest file system.

    A hung file system is queried again after it has answered.
    """

    name = "filesystem"
    Settings = FilesystemSettings
    metrics: ClassVar[dict[str, Metric]] = {
        "disk_total": Metric("B", "node", "size of all local file systems",
            "/proc/self/mountinfo; statvfs, f_blocks"),
        "disk_free": Metric("B", "node", "space available to users, all local file systems",
            "/proc/self/mountinfo; statvfs, f_bavail"),
        "part_max_used": Metric("%", "node", "use of the fullest local file system, as in df",
            "/proc/self/mountinfo; statvfs, f_blocks, f_bfree, f_bavail", aggregation="max"),
        "part_max_inodes_used": Metric("%", "node",
            "inodes in use, of the local file system with the lowest share left",
            "/proc/self/mountinfo; statvfs, f_files, f_ffree", aggregation="max"),
    }  # fmt: skip

    def __init__(self, settings: FilesystemSettings | None = None) -> None:
        super().__init__(settings)
        self._queries = SpaceQueries(_MOST_HANGING)
        self._table = b""
        self._mounts: list[Mount] = []

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """List the mounts and query all of them. Wait only once for a hung file system."""
        self.forget_errors()
        mounts = read_parsed(node, MOUNTINFO, self._local_mounts)
        if not mounts:
            raise NotHereError(f"/{MOUNTINFO}: no local file system")
        limit = self.settings.time_limit.seconds
        answers = self._queries.ask(node, [mount.point for mount in mounts], limit)
        self.errors += self._queries.problems
        spaces: list[Space] = []
        for answer in answers.values():
            if not isinstance(answer, CcagentError):
                spaces.append(space_of(answer))
            elif not isinstance(answer, NotHereError):
                self.errors.append(escape(str(answer)))
        spaces = [space for space in spaces if space.size]
        if not spaces:
            return []
        found = [
            Gauge("disk_total", sum(space.size for space in spaces)),
            Gauge("disk_free", sum(space.free for space in spaces)),
            Gauge("part_max_used", max(_percent(each.used, each.free) for each in spaces)),
        ]
        inodes = [100 * space.inodes_used / space.inodes for space in spaces if space.inodes]
        if inodes:
            found.append(Gauge("part_max_inodes_used", max(inodes)))
        return found

    def _local_mounts(self, table: bytes) -> list[Mount]:
        """Return the mounts that count. Parse the table only after a change."""
        if table != self._table:
            mounts = parse_visible_mounts(table)
            self._mounts = local_mounts(mounts, self.settings.types, self.settings.exclude)
            self._table = table
        return self._mounts


def _percent(used: int, free: int) -> float:
    return 100 * used / (used + free) if used + free else 0.0
