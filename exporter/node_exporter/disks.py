"""The collector of block devices: diskstats."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.exporter.collector import Collector, read_text
from ccagent.exporter.family import Family, gauge
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.diskstats import parse_diskstats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.family import Labels, Rows
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node

_SECTOR = 512
_DEVICE = ("device",)
_COLUMNS: tuple[tuple[str, float, str], ...] = (
    ("reads_completed_total", 1, "The total number of reads completed successfully."),
    ("reads_merged_total", 1, "The total number of reads merged."),
    ("read_bytes_total", _SECTOR, "The total number of bytes read successfully."),
    ("read_time_seconds_total", 1e-3, "The total number of seconds spent by all reads."),
    ("writes_completed_total", 1, "The total number of writes completed successfully."),
    ("writes_merged_total", 1, "The number of writes merged."),
    ("written_bytes_total", _SECTOR, "The total number of bytes written successfully."),
    ("write_time_seconds_total", 1e-3, "This is the total number of seconds spent by all writes."),
    ("io_now", 1, "The number of I/Os currently in progress."),
    ("io_time_seconds_total", 1e-3, "Total seconds spent doing I/Os."),
    ("io_time_weighted_seconds_total", 1e-3, "The weighted # of seconds spent doing I/Os."),
    ("discards_completed_total", 1, "The total number of discards completed successfully."),
    ("discards_merged_total", 1, "The total number of discards merged."),
    ("discarded_sectors_total", 1, "The total number of sectors discarded successfully."),
    ("discard_time_seconds_total", 1e-3,
     "This is the total number of seconds spent by all discards."),
    ("flush_requests_total", 1, "The total number of flush requests completed successfully"),
    ("flush_requests_time_seconds_total", 1e-3,
     "This is the total number of seconds spent by all flush requests."),
)  # fmt: skip
_FAMILIES = tuple(
    (Family(f"node_disk_{name}", "gauge" if name == "io_now" else "counter", text, _DEVICE), factor)
    for name, factor, text in _COLUMNS
)
_INFO = gauge(
    "node_disk_info", "Info of /sys/block/<block_device>.",
    "device", "major", "minor", "path", "wwn", "model", "serial", "revision",
)  # fmt: skip
_UDEV = re.compile(r"^E:(ID_PATH|ID_WWN|ID_MODEL|ID_SERIAL_SHORT|ID_REVISION)=(.*)$", re.MULTILINE)


class DiskCollector(Collector):
    """Requests, bytes and times of block devices."""

    name = "diskstats"

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._excluded = re.compile(settings.node_exporter.disk_exclude)
        self._info: dict[tuple[str, int, int], Labels] = {}

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/diskstats, and once per device the database of udev."""
        disks = [
            disk
            for disk in read_parsed(node, "proc/diskstats", parse_diskstats)
            if not self._excluded.search(disk.name)
        ]
        known = self._info
        self._info = {}
        for disk in disks:
            key = (disk.name, disk.major, disk.minor)
            self._info[key] = known.get(key) or _describe(node, *key)
        yield _INFO, [(labels, 1) for labels in self._info.values()]
        names = [(disk.name,) for disk in disks]
        for column, (family, factor) in enumerate(_FAMILIES):
            rows: list[tuple[Labels, float]] = []
            for labels, disk in zip(names, disks, strict=True):
                if column < len(disk.stats):
                    value = disk.stats[column]
                    rows.append((labels, value / 1000 if factor == 1e-3 else value * factor))
            yield family, rows


def _describe(node: Node, name: str, major: int, minor: int) -> Labels:
    """Return the labels of a device from the database of udev; empty values if it has none."""
    known = dict(_UDEV.findall(read_text(node, f"run/udev/data/b{major}:{minor}")))
    return (
        name, str(major), str(minor), known.get("ID_PATH", ""), known.get("ID_WWN", ""),
        known.get("ID_MODEL", ""), known.get("ID_SERIAL_SHORT", ""), known.get("ID_REVISION", ""),
    )  # fmt: skip
