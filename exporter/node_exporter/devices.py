"""Collectors of disks, file systems and InfiniBand: diskstats, mdadm, filesystem, infiniband."""

from __future__ import annotations

import os
import re
from itertools import islice
from typing import TYPE_CHECKING

from ccagent.agents.metrics.readers.disk import LOCAL
from ccagent.errors import CcagentError, NotHereError
from ccagent.exporter.collector import Collector, list_names, read_number, read_numbers, read_text
from ccagent.exporter.exposition import Family, counter, gauge
from ccagent.machine.infiniband_ports import DEVICES
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo
from ccagent.machine.procfs.system import parse_diskstats, parse_mdstat
from ccagent.machine.space import SpaceQueries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.exposition import FamilyRows, Labels
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.mountinfo import Mount


_SECTOR = 512
_DISK = ("device",)
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
_DISK_FAMILIES = tuple(
    (Family(f"node_disk_{name}", "gauge" if name == "io_now" else "counter", text, _DISK), factor)
    for name, factor, text in _COLUMNS
)
_DISK_INFO = gauge(
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
        for column, (family, factor) in enumerate(_DISK_FAMILIES):
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
    yield _DISK_INFO, (name, str(major), str(minor), path, wwn, model, *more), 1
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


_PORT = ("device", "port")
_PORT_COUNTERS: dict[str, tuple[str, int, str]] = {
    "counters/port_rcv_data": (
        "port_data_received_bytes_total", 4, "Number of data octets received on all links"),
    "counters/port_xmit_data": (
        "port_data_transmitted_bytes_total", 4, "Number of data octets transmitted on all links"),
    "counters/port_rcv_packets": (
        "port_packets_received_total", 1,
        "Number of packets received on all VLs by this port (including errors)"),
    "counters/port_xmit_packets": (
        "port_packets_transmitted_total", 1,
        "Number of packets transmitted on all VLs from this port (including errors)"),
    "counters/unicast_rcv_packets": (
        "unicast_packets_received_total", 1,
        "Number of unicast packets received (including errors)"),
    "counters/unicast_xmit_packets": (
        "unicast_packets_transmitted_total", 1,
        "Number of unicast packets transmitted (including errors)"),
    "counters/multicast_rcv_packets": (
        "multicast_packets_received_total", 1,
        "Number of multicast packets received (including errors)"),
    "counters/multicast_xmit_packets": (
        "multicast_packets_transmitted_total", 1,
        "Number of multicast packets transmitted (including errors)"),
    "counters/port_rcv_errors": (
        "port_errors_received_total", 1,
        "Number of packets containing an error that were received on this port"),
    "counters/port_rcv_discards": (
        "port_discards_received_total", 1,
        "Number of inbound packets discarded by the port because the port is down or congested"),
    "counters/port_xmit_discards": (
        "port_discards_transmitted_total", 1,
        "Number of outbound packets discarded by the port because the port is down or congested"),
    "counters/port_rcv_constraint_errors": (
        "port_constraint_errors_received_total", 1,
        "Number of packets received on the switch physical port that are discarded"),
    "counters/port_xmit_constraint_errors": (
        "port_constraint_errors_transmitted_total", 1,
        "Number of packets not transmitted from the switch physical port"),
    "counters/port_rcv_remote_physical_errors": (
        "port_receive_remote_physical_errors_total", 1,
        "Number of packets marked with EBP (End of Bad Packet) delimiter received on the port."),
    "counters/port_rcv_switch_relay_errors": (
        "port_receive_switch_relay_errors_total", 1,
        "Number of packets that could not be forwarded by the switch."),
    "counters/port_xmit_wait": (
        "port_transmit_wait_total", 1,
        ("Number of ticks during which the port had data to transmit but no data was sent during"
        " the entire tick")),
    "counters/symbol_error": (
        "symbol_error_total", 1,
        "Number of minor link errors detected on one or more physical lanes."),
    "counters/VL15_dropped": (
        "vl15_dropped_total", 1,
        "Number of incoming VL15 packets dropped due to resource limitations."),
    "counters/excessive_buffer_overrun_errors": (
        "excessive_buffer_overrun_errors_total", 1,
        ("Number of times that OverrunErrors consecutive flow control update periods occurred,"
        " each having at least one overrun error.")),
    "counters/link_downed": (
        "link_downed_total", 1,
        "Number of times the link failed to recover from an error state and went down"),
    "counters/link_error_recovery": (
        "link_error_recovery_total", 1,
        "Number of times the link successfully recovered from an error state"),
    "counters/local_link_integrity_errors": (
        "local_link_integrity_errors_total", 1,
        ("Number of times that the count of local physical errors exceeded the threshold specified"
        " by LocalPhyErrors.")),
    "counters_ext/port_multicast_rcv_packets": (
        "legacy_multicast_packets_received_total", 1, "Number of multicast packets received"),
    "counters_ext/port_multicast_xmit_packets": (
        "legacy_multicast_packets_transmitted_total", 1,
        "Number of multicast packets transmitted"),
    "counters_ext/port_rcv_data_64": (
        "legacy_data_received_bytes_total", 4, "Number of data octets received on all links"),
    "counters_ext/port_rcv_packets_64": (
        "legacy_packets_received_total", 1,
        "Number of data packets received on all links"),
    "counters_ext/port_unicast_rcv_packets": (
        "legacy_unicast_packets_received_total", 1, "Number of unicast packets received"),
    "counters_ext/port_unicast_xmit_packets": (
        "legacy_unicast_packets_transmitted_total", 1, "Number of unicast packets transmitted"),
    "counters_ext/port_xmit_data_64": (
        "legacy_data_transmitted_bytes_total", 4,
        "Number of data octets transmitted on all links"),
    "counters_ext/port_xmit_packets_64": (
        "legacy_packets_transmitted_total", 1,
        "Number of data packets received on all links"),
}  # fmt: skip
_PORT_FAMILIES = {
    file: (counter(f"node_infiniband_{name}", text, *_PORT), factor)
    for file, (name, factor, text) in _PORT_COUNTERS.items()
}
_INFINIBAND_INFO = gauge(
    "node_infiniband_info",
    "Non-numeric data from /sys/class/infiniband/<device>, value is always 1.",
    "device", "board_id", "firmware_version", "hca_type",
)  # fmt: skip
_PORT_STATE = gauge(
    "node_infiniband_state_id",
    "State of the InfiniBand port (0: no change, 1: down, 2: init, 3: armed, 4: active, 5: act"
    " defer)", *_PORT,
)  # fmt: skip
_PORT_PHYSICAL = gauge(
    "node_infiniband_physical_state_id",
    "Physical state of the InfiniBand port (0: no change, 1: sleep, 2: polling, 3: disable, 4:"
    " shift, 5: link up, 6: link error recover, 7: phytest)", *_PORT,
)  # fmt: skip
_PORT_RATE = gauge("node_infiniband_rate_bytes_per_second", "Maximum signal transfer rate", *_PORT)
_PORT_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)")


def read_infiniband(node: Node) -> Iterator[FamilyRows]:
    """Read /sys/class/infiniband: counters and states of InfiniBand and Omni-Path ports."""
    devices = sorted(node.list(DEVICES))
    if not devices:
        raise NotHereError(f"/{DEVICES}: no device")
    infos: list[tuple[Labels, float]] = []
    ports: list[Labels] = []
    for device in devices:
        words = [
            read_text(node, f"{DEVICES}/{device}/{name}")
            for name in ("board_id", "fw_ver", "hca_type")
        ]
        infos.append(((device, *words), 1))
        ports += [(device, port) for port in list_names(node, f"{DEVICES}/{device}/ports")]
    yield _INFINIBAND_INFO, infos
    for file, (family, factor) in _PORT_FAMILIES.items():
        files = ((own, f"{DEVICES}/{own[0]}/ports/{own[1]}/{file}") for own in ports)
        yield family, read_numbers(node, files, factor)
    # Example: `100 Gb/sec (4X EDR)`.
    for name, family, scale in (
        ("state", _PORT_STATE, 1), ("phys_state", _PORT_PHYSICAL, 1),
        ("rate", _PORT_RATE, 125_000_000),
    ):  # fmt: skip
        states: list[tuple[Labels, float]] = []
        for device, port in ports:
            text = read_text(node, f"{DEVICES}/{device}/ports/{port}/{name}")
            found = _PORT_NUMBER.match(text)
            if found is not None:
                number = float(found[1]) * scale
                states.append(((device, port), int(number)))
        yield family, states


_MOUNT_POINT = ("device", "fstype", "mountpoint")
_SIZE = gauge("node_filesystem_size_bytes", "Filesystem size in bytes.", *_MOUNT_POINT)
_FREE = gauge("node_filesystem_free_bytes", "Filesystem free space in bytes.", *_MOUNT_POINT)
_AVAIL = gauge(
    "node_filesystem_avail_bytes",
    "Filesystem space available to non-root users in bytes.", *_MOUNT_POINT,
)  # fmt: skip
_FILES = gauge("node_filesystem_files", "Filesystem total file nodes.", *_MOUNT_POINT)
_FILES_FREE = gauge(
    "node_filesystem_files_free", "Filesystem total free file nodes.", *_MOUNT_POINT
)
_READONLY = gauge("node_filesystem_readonly", "Filesystem read-only status.", *_MOUNT_POINT)
_ERROR = gauge(
    "node_filesystem_device_error",
    "Whether an error occurred while getting statistics for the given device.", *_MOUNT_POINT,
    "device_error",
)  # fmt: skip
_MOUNT = gauge(
    "node_filesystem_mount_info", "Filesystem mount information.",
    "device", "major", "minor", "mountpoint",
)  # fmt: skip
_PATIENCE = 0.5
_MOST_HANGING = 64
_MOST_MOUNTS = 1000
"""Maximum of mounts with series: users can mount FUSE file systems without limit."""
_INIT = "proc/1/mountinfo"
_READ_ONLY_FLAG = 1
"""ST_RDONLY of statvfs(3)."""


class FilesystemCollector(Collector):
    """Size, free space and inodes by mount point."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        chosen = settings.node_exporter
        self._points = re.compile(chosen.filesystem_exclude)
        self._types = re.compile(chosen.filesystem_types_exclude)
        self._queries = SpaceQueries(_MOST_HANGING)

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the mounts of process 1, or of this process, and the space of each.

        Raise NotHereError if all mounts are excluded.
        """
        mounts = self._list(node)
        local_first = sorted(mounts.values(), key=lambda mount: mount.type not in LOCAL)
        answers = self._queries.ask(node, [mount.point for mount in local_first], _PATIENCE)
        for problem in self._queries.problems:
            self.warn(problem)
        errors: list[tuple[Labels, float]] = []
        rows: dict[Family, list[tuple[Labels, float]]] = {
            each: [] for each in (_SIZE, _FREE, _AVAIL, _FILES, _FILES_FREE, _READONLY, _MOUNT)
        }
        for labels, mount in mounts.items():
            space = answers.get(mount.point)
            if space is None or isinstance(space, CcagentError):
                errors.append(((*labels, _describe_error(space)), 1))
                continue
            errors.append(((*labels, ""), 0))
            unit = space.f_frsize or space.f_bsize
            rows[_SIZE].append((labels, space.f_blocks * unit))
            rows[_FREE].append((labels, space.f_bfree * unit))
            rows[_AVAIL].append((labels, space.f_bavail * unit))
            rows[_FILES].append((labels, space.f_files))
            rows[_FILES_FREE].append((labels, space.f_ffree))
            # ext4 does not set the flag after an error of the device.
            is_stopped = int("emergency_ro" in mount.options.split(","))
            rows[_READONLY].append((labels, space.f_flag & _READ_ONLY_FLAG or is_stopped))
            major, _, minor = mount.device.partition(":")
            rows[_MOUNT].append(((mount.source, major, minor, mount.point), 1))
        yield _ERROR, errors
        yield from rows.items()

    def _list(self, node: Node) -> dict[Labels, Mount]:
        try:
            mounts = read_parsed(node, _INIT, parse_mountinfo)
        except CcagentError:
            mounts = read_parsed(node, MOUNTINFO, parse_mountinfo)
        found: dict[Labels, Mount] = {
            (mount.source, mount.type, mount.point): mount
            for mount in mounts
            if not self._points.search(mount.point) and not self._types.search(mount.type)
        }
        if not found:
            raise NotHereError(f"/{MOUNTINFO}: all file systems are excluded")
        if len(found) > _MOST_MOUNTS:
            self.warn(f"{len(found)} mounts: only the first {_MOST_MOUNTS} have series")
        return dict(islice(found.items(), _MOST_MOUNTS))


def _describe_error(error: CcagentError | None) -> str:
    """Return the label `device_error`: in node_exporter's words, if they are the system's."""
    if error is None:
        return "mountpoint timeout"
    number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
    return os.strerror(number).lower() if number else str(error)
