"""Reader of transfers and utilisation of local disks."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.metrics.readers.base import NODE, Count, Gauge, Metric, Reader, ReaderSettings
from ccagent.agents.metrics.readers.disk_requests import REQUEST_METRICS, DiskRequests, device_scope
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.counters import Sums
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.diskstats import parse_used_disks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ccagent.agents.metrics.readers.base import Scope
    from ccagent.machine.node import Node

_STATISTICS = "proc/diskstats"
_DISKS = "sys/block"
_SECTOR = 512
_READS, _SECTORS_READ, _WRITES, _SECTORS_WRITTEN, _BUSY = 0, 2, 4, 6, 9
_METRICS = ("disk_read", "disk_write", "disk_reads", "disk_writes")
_NO_DISK = re.compile(r"(sr|fd)\d+")
_PATH = re.compile(r"(nvme\d+)c\d+(n\d+)")


def choose_disks(
    disks: Mapping[str, Collection[str]],
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
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
        "disk_read": Metric(
            unit="B/s",
            type="node",
            description="bytes read, all disks",
            source="/proc/diskstats, sectors read * 512",
        ),
        "disk_write": Metric(
            unit="B/s",
            type="node",
            description="bytes written, all disks",
            source="/proc/diskstats, sectors written * 512",
        ),
        "disk_reads": Metric(
            unit="1/s",
            type="node",
            description="reads completed, all disks",
            source="/proc/diskstats, reads completed",
        ),
        "disk_writes": Metric(
            unit="1/s",
            type="node",
            description="writes completed, all disks",
            source="/proc/diskstats, writes completed",
        ),
        "disk_busy": Metric(
            unit="%",
            type="node",
            description="share of time in which the busiest disk had requests; a disk with parallel"
            " requests is not necessarily saturated at 100",
            source="/proc/diskstats, time spent doing I/Os",
            aggregation="max",
        ),
        **REQUEST_METRICS,
    }

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
        self.errors = []
        now = node.clock.monotonic()
        disks = {disk.name: disk.stats for disk in read_parsed(node, _STATISTICS, parse_used_disks)}
        self._choose(node, disks.keys())
        counters: dict[str, tuple[int, ...]] = {}
        busy: dict[str, tuple[int]] = {}
        for name in sorted(self._chosen):
            stats = disks[name]
            if len(stats) <= _BUSY:
                self.errors.append(f"/{_STATISTICS}: {name!r}: only {len(stats)} values")
                continue
            counters[name] = (
                stats[_SECTORS_READ] * _SECTOR,
                stats[_SECTORS_WRITTEN] * _SECTOR,
                stats[_READS],
                stats[_WRITES],
            )
            busy[name] = (stats[_BUSY],)
        if not counters:
            if self.errors:
                return []
            raise NotHereError(f"/{_STATISTICS}: no disk among {sorted(disks)}")
        self._sums.add(counters)
        deltas = self._busy.add(busy)
        seconds = 0.0 if self._moment is None else now - self._moment
        self._moment = now
        shares: dict[str, float] = {}
        if seconds > 0:
            shares = {name: min(100.0, delta[0] / seconds / 10) for name, delta in deltas.items()}
        found: list[Gauge | Count] = []
        if self.settings.by_device:
            for name in sorted(counters):
                found += _counts(self._sums.parts[name], device_scope(name))
            found += (Gauge("disk_busy", shares[name], device_scope(name)) for name in shares)
            found += self._requests.add({name: disks[name] for name in counters}, seconds)
        found += _counts(self._sums.total, NODE)
        if shares:
            found.append(Gauge("disk_busy", max(shares.values())))
        return found

    def read_raw(self, node: Node) -> Iterable[Gauge | Count]:
        """Read the counters of each disk since boot."""
        self.errors = []
        disks = {disk.name: disk.stats for disk in read_parsed(node, _STATISTICS, parse_used_disks)}
        self._choose(node, disks.keys())
        found: list[Gauge | Count] = []
        for name in sorted(self._chosen):
            stats = disks[name]
            if len(stats) > _BUSY:
                read, written = stats[_SECTORS_READ] * _SECTOR, stats[_SECTORS_WRITTEN] * _SECTOR
                values = [read, written, stats[_READS], stats[_WRITES]]
                found += _counts(values, device_scope(name))
                # Hundredths of a second: 100 in a second are 100 %.
                found.append(Count("disk_busy", stats[_BUSY] // 10, device_scope(name)))
        return found

    def _choose(self, node: Node, names: Collection[str]) -> None:
        if names == self._seen:
            return
        directories: dict[str, list[str]] = {}
        for name in names:
            try:
                # The directory of cciss/c0d0 is cciss!c0d0.
                directories[name] = node.list(f"{_DISKS}/{name.replace('/', '!')}")
            except NotHereError:
                continue
            except CcagentError as error:
                self.errors.append(str(error))
        self._chosen = choose_disks(directories, self.settings.include, self.settings.exclude)
        self._seen = set(names)


def _counts(values: list[int], scope: Scope) -> Iterable[Count]:
    return (Count(metric, value, scope) for metric, value in zip(_METRICS, values, strict=True))
