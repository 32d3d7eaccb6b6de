"""The collectors of InfiniBand ports and NFS clients: infiniband, nfs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.errors import NotHereError
from ccagent.exporter.collector import Collector, list_names, read_number, read_text
from ccagent.exporter.family import counter, gauge
from ccagent.machine.infiniband_ports import DEVICES
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.nfs import NFS3, operations4, parse_operations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.family import Family, Labels, Rows
    from ccagent.machine.node import Node

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
        "Number of ticks during which the port had data to transmit but no data was sent"),
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


class InfinibandCollector(Collector):
    """Counters and states of InfiniBand and Omni-Path ports."""

    name = "infiniband"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /sys/class/infiniband."""
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
            rows: list[tuple[Labels, float]] = []
            for device, port in ports:
                value = read_number(node, f"{DEVICES}/{device}/ports/{port}/{file}")
                if value is not None:
                    rows.append(((device, port), value * factor))
            yield family, rows
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
_V3 = {
    "readdirplus": "ReadDirPlus", "fsstat": "FsStat", "fsinfo": "FsInfo", "pathconf": "PathConf",
    "readlink": "ReadLink", "mkdir": "MkDir", "symlink": "SymLink", "mknod": "MkNod",
    "rmdir": "RmDir", "readdir": "ReadDir", "getattr": "GetAttr", "setattr": "SetAttr",
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


class NfsCollector(Collector):
    """Operations of the NFS client by version."""

    name = "nfs"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/net/rpc/nfs."""
        found = read_parsed(node, "proc/net/rpc/nfs", parse_operations)
        network = found.get("net", [])
        if len(network) >= 4:
            yield _PACKETS, [(("udp",), network[1]), (("tcp",), network[2])]
            yield _CONNECTIONS, [((), network[3])]
        rpc = found.get("rpc", [])
        for family, value in zip((_RPCS, _RETRANSMISSIONS, _REFRESHES), rpc, strict=False):
            yield family, [((), value)]
        rows: list[tuple[Labels, float]] = []
        for version in (3, 4):
            numbers = found.get(f"proc{version}", [])
            names = NFS3 if version == 3 else operations4(len(numbers))
            for name, number in zip(names, numbers, strict=False):
                rows.append(((str(version), name_method(name, version)), number))
        yield _REQUESTS, rows


def name_method(operation: str, version: int) -> str:
    """Return node_exporter's name of an operation: `GetAttr` of version 3, `Getattr` of 4."""
    special = (_V3 if version == 3 else _V4).get(operation)
    return special or "".join(word.capitalize() for word in operation.split("_"))
