"""The collectors of InfiniBand ports and file systems: infiniband, filesystem."""

from __future__ import annotations

import os
import re
from itertools import islice
from typing import TYPE_CHECKING

from ccagent.agents.metrics.readers.disk import LOCAL
from ccagent.errors import CcagentError, NotHereError
from ccagent.exporter.collector import Collector, list_names, read_numbers, read_text
from ccagent.exporter.exposition import counter, gauge
from ccagent.machine.infiniband_ports import DEVICES
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo
from ccagent.machine.space import SpaceQueries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.exposition import Family, FamilyRows, Labels
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.mountinfo import Mount


_PORT = ("device", "port")
_COUNTERS: dict[str, tuple[str, int, str]] = {
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
_FAMILIES = {
    file: (counter(f"node_infiniband_{name}", text, *_PORT), factor)
    for file, (name, factor, text) in _COUNTERS.items()
}
_INFO = gauge(
    "node_infiniband_info",
    "Non-numeric data from /sys/class/infiniband/<device>, value is always 1.",
    "device", "board_id", "firmware_version", "hca_type",
)  # fmt: skip
_STATE = gauge(
    "node_infiniband_state_id",
    "State of the InfiniBand port (0: no change, 1: down, 2: init, 3: armed, 4: active, 5: act"
    " defer)", *_PORT,
)  # fmt: skip
_PHYSICAL = gauge(
    "node_infiniband_physical_state_id",
    "Physical state of the InfiniBand port (0: no change, 1: sleep, 2: polling, 3: disable, 4:"
    " shift, 5: link up, 6: link error recover, 7: phytest)", *_PORT,
)  # fmt: skip
_RATE = gauge("node_infiniband_rate_bytes_per_second", "Maximum signal transfer rate", *_PORT)
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)")


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
    yield _INFO, infos
    for file, (family, factor) in _FAMILIES.items():
        files = ((own, f"{DEVICES}/{own[0]}/ports/{own[1]}/{file}") for own in ports)
        yield family, read_numbers(node, files, factor)
    # Example: `100 Gb/sec (4X EDR)`.
    for name, family, scale in (
        ("state", _STATE, 1), ("phys_state", _PHYSICAL, 1), ("rate", _RATE, 125_000_000),
    ):  # fmt: skip
        states: list[tuple[Labels, float]] = []
        for device, port in ports:
            text = read_text(node, f"{DEVICES}/{device}/ports/{port}/{name}")
            found = _NUMBER.match(text)
            if found is not None:
                number = float(found[1]) * scale
                states.append(((device, port), int(number)))
        yield family, states


_LABELS = ("device", "fstype", "mountpoint")
_SIZE = gauge("node_filesystem_size_bytes", "Filesystem size in bytes.", *_LABELS)
_FREE = gauge("node_filesystem_free_bytes", "Filesystem free space in bytes.", *_LABELS)
_AVAIL = gauge(
    "node_filesystem_avail_bytes",
    "Filesystem space available to non-root users in bytes.", *_LABELS,
)  # fmt: skip
_FILES = gauge("node_filesystem_files", "Filesystem total file nodes.", *_LABELS)
_FILES_FREE = gauge("node_filesystem_files_free", "Filesystem total free file nodes.", *_LABELS)
_READONLY = gauge("node_filesystem_readonly", "Filesystem read-only status.", *_LABELS)
_ERROR = gauge(
    "node_filesystem_device_error",
    "Whether an error occurred while getting statistics for the given device.", *_LABELS,
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
