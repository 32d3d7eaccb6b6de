"""Collectors of block devices: diskstats, and mdadm for arrays of disks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.exporter.collector import Collector, read_number, read_text
from ccagent.exporter.exposition import Family, gauge
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import parse_diskstats, parse_mdstat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.exposition import FamilyRows, Labels
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
    "device", "major", "minor", "path", "wwn", "model", "serial", "revision", "rotational",
)  # fmt: skip
_UDEV = re.compile(r"^E:([A-Z_]+)=(.*)$", re.MULTILINE)
_FILE_SYSTEM = gauge(
    "node_disk_filesystem_info", "Info about disk filesystem.",
    "device", "type", "usage", "uuid", "version",
)  # fmt: skip
_MAPPER = gauge(
    "node_disk_device_mapper_info", "Info about disk device mapper.",
    "device", "name", "uuid", "vg_name", "lv_name", "lv_layer",
)  # fmt: skip
_ATA = {
    key: gauge(f"node_disk_ata_{name}", text, "device")
    for key, name, text in (
        ("ID_ATA_WRITE_CACHE", "write_cache", "ATA disk has a write cache."),
        ("ID_ATA_WRITE_CACHE_ENABLED", "write_cache_enabled",
         "ATA disk has its write cache enabled."),
        ("ID_ATA_ROTATION_RATE_RPM", "rotation_rate_rpm",
         "ATA disk rotation rate in RPMs (0 for SSDs)."),
    )
}  # fmt: skip


class DiskCollector(Collector):
    """Requests, bytes and times of block devices."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._excluded = re.compile(settings.node_exporter.disk_exclude)
        self._known: dict[tuple[str, int, int], list[tuple[Family, Labels, float]]] = {}

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read /proc/diskstats, and once per device the database of udev and /sys/block."""
        disks = [
            disk
            for disk in read_parsed(node, "proc/diskstats", parse_diskstats)
            if not self._excluded.search(disk.name)
        ]
        known = self._known
        keys = [(disk.name, disk.major, disk.minor) for disk in disks]
        self._known = {key: known.get(key) or [*_describe(node, *key)] for key in keys}
        described: dict[Family, list[tuple[Labels, float]]] = {}
        for samples in self._known.values():
            for of_device, more, value in samples:
                described.setdefault(of_device, []).append((more, value))
        yield from described.items()
        names = [(disk.name,) for disk in disks]
        for column, (family, factor) in enumerate(_FAMILIES):
            rows: list[tuple[Labels, float]] = []
            for labels, disk in zip(names, disks, strict=True):
                if column < len(disk.stats):
                    value = disk.stats[column]
                    rows.append((labels, value / 1000 if factor == 1e-3 else value * factor))
            yield family, rows


def _describe(
    node: Node, name: str, major: int, minor: int
) -> Iterator[tuple[Family, Labels, float]]:
    """Yield what the database of udev and /sys/block say of a device, as samples."""
    found = dict(_UDEV.findall(read_text(node, f"run/udev/data/b{major}:{minor}")))
    serials = map(found.get, ("SCSI_IDENT_SERIAL", "ID_SERIAL_SHORT", "ID_SERIAL"))
    path, wwn, model, revision = (
        found.get(f"ID_{key}", "") for key in ("PATH", "WWN", "MODEL", "REVISION")
    )
    is_rotational = read_number(node, f"sys/block/{name}/queue/rotational") == 1
    more = (next(filter(None, serials), ""), revision, str(int(is_rotational)))
    yield _INFO, (name, str(major), str(minor), path, wwn, model, *more), 1
    for family, prefix in ((_FILE_SYSTEM, "ID_FS_"), (_MAPPER, "DM_")):
        words = [found.get(prefix + label.upper(), "") for label in family.labels[1:]]
        if words[0]:
            yield family, (name, *words), 1
    for key, of_ata in _ATA.items():
        number = found.get(key, "")
        if found.get("ID_ATA") and number.isdecimal():
            yield of_ata, (name,), int(number)


_MD_STATES = {
    "active": "active", "inactive": "inactive", "recovering": "recovering", "resync": "resyncing",
    "check": "checking",
}  # fmt: skip
"""Value of the label `state`, and the state in MdArray."""
_MD_STATE = gauge("node_md_state", "Indicates the state of md-device.", "device", "state")
_MD_DISKS = gauge(
    "node_md_disks", "Number of active/failed/spare disks of device.", "device", "state"
)
_MD_REQUIRED = gauge("node_md_disks_required", "Total number of disks of device.", "device")
_MD_BLOCKS = gauge("node_md_blocks", "Total number of blocks on device.", "device")
_MD_SYNCED = gauge("node_md_blocks_synced", "Number of blocks synced on device.", "device")
_MD_RAID_DISKS = gauge("node_md_raid_disks", "Number of raid disks on device.", "device")
_MD_DEGRADED = gauge("node_md_degraded", "Number of degraded disks on device.", "device")


def read_mdadm(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/mdstat and /sys/block/md*/md: arrays of disks. NotHereError without the driver."""
    arrays = read_parsed(node, "proc/mdstat", parse_mdstat)
    yield (
        _MD_STATE,
        [
            ((each.name, label), int(each.state == state))
            for each in arrays
            for label, state in _MD_STATES.items()
        ],
    )
    yield (
        _MD_DISKS,
        [
            ((each.name, label), number)
            for each in arrays
            for label, number in (
                ("active", each.active), ("failed", each.failed), ("spare", each.spare),
            )
        ],
    )  # fmt: skip
    yield _MD_REQUIRED, [((each.name,), each.required) for each in arrays]
    yield _MD_BLOCKS, [((each.name,), each.blocks) for each in arrays]
    yield _MD_SYNCED, [((each.name,), each.synced) for each in arrays]
    disks: list[tuple[Labels, float]] = []
    degraded: list[tuple[Labels, float]] = []
    for each in arrays:
        directory = f"sys/block/{each.name}/md"
        # While an array is reshaped: `11 (10)`. Containers have none.
        number = read_text(node, f"{directory}/raid_disks").partition(" ")[0]
        if number.isdecimal():
            disks.append(((each.name,), int(number)))
        # Arrays without redundancy lack the file.
        degraded.append(((each.name,), read_number(node, f"{directory}/degraded") or 0))
    yield _MD_RAID_DISKS, disks
    yield _MD_DEGRADED, degraded
