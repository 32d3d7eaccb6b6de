"""Network collectors: netdev, netclass, netstat, sockstat, softnet and others."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.exporter.collector import Collector, read_number, read_text
from ccagent.exporter.family import counter, gauge, untyped
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.network import (
    parse_arp,
    parse_device,
    parse_netstat,
    parse_snmp6,
    parse_sockstat,
    parse_softnet,
    parse_udp_queues,
    split_devices,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.family import Family, Labels, Rows
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node

_COLUMNS = (
    *(
        f"receive_{name}"
        for name in ("bytes", "packets", "errs", "drop", "fifo", "frame", "compressed", "multicast")
    ),
    *(
        f"transmit_{name}"
        for name in ("bytes", "packets", "errs", "drop", "fifo", "colls", "carrier", "compressed")
    ),
)
_TRAFFIC = tuple(
    counter(f"node_network_{name}_total", f"Network device statistic {name}.", "device")
    for name in _COLUMNS
)
_NO_HANDLER = counter(
    "node_network_receive_nohandler_total",
    "Network device statistic receive_nohandler.", "device",
)  # fmt: skip
_CLASS = "sys/class/net"


class NetdevCollector(Collector):
    """Bytes, packets, errors and drops by interface."""

    name = "netdev"

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._excluded = re.compile(settings.node_exporter.network_exclude)

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/net/dev, and further counters from /sys/class/net."""
        devices: list[Labels] = []
        numbers: list[tuple[int, ...]] = []
        for name, counters in split_devices(node.read("proc/net/dev")).items():
            if self._excluded.search(name):
                continue
            try:
                numbers.append(parse_device(counters))
            except UnparsableError as error:
                self.warn(f"/proc/net/dev: {name!r}: {error}")
            else:
                devices.append((name,))
        for family, column in zip(_TRAFFIC, zip(*numbers, strict=True), strict=False):
            yield family, zip(devices, column, strict=True)
        rows: list[tuple[Labels, float]] = []
        for device in devices:
            value = read_number(node, f"{_CLASS}/{device[0]}/statistics/rx_nohandler")
            if value is not None:
                rows.append((device, value))
        yield _NO_HANDLER, rows


_PROPERTIES: dict[str, tuple[str, int]] = {
    "addr_assign_type": ("address_assign_type", 1),
    "carrier": ("carrier", 1),
    "carrier_changes": ("carrier_changes_total", 1),
    "carrier_up_count": ("carrier_up_changes_total", 1),
    "carrier_down_count": ("carrier_down_changes_total", 1),
    "dev_id": ("device_id", 1),
    "dormant": ("dormant", 1),
    "flags": ("flags", 1),
    "ifindex": ("iface_id", 1),
    "iflink": ("iface_link", 1),
    "link_mode": ("iface_link_mode", 1),
    "mtu": ("mtu_bytes", 1),
    "name_assign_type": ("name_assign_type", 1),
    "netdev_group": ("net_dev_group", 1),
    "speed": ("speed_bytes", 125_000),
    "tx_queue_len": ("transmit_queue_length", 1),
    "type": ("protocol_type", 1),
}
_CLASS_FAMILIES = {
    file: (
        (counter if name.endswith("_total") else gauge)(
            f"node_network_{name}", f"Network device property: {name}", "device"
        ),
        factor,
    )
    for file, (name, factor) in _PROPERTIES.items()
}
_UP = gauge("node_network_up", "Value is 1 if operstate is 'up', 0 otherwise.", "device")
_INFO = gauge(
    "node_network_info", "Non-numeric data from /sys/class/net/<iface>, value is always 1.",
    "device", "address", "broadcast", "duplex", "operstate", "ifalias",
)  # fmt: skip


class NetclassCollector(Collector):
    """Properties of interfaces: state, carrier, MTU, speed, addresses."""

    name = "netclass"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /sys/class/net."""
        devices = [
            name for name in sorted(node.list(_CLASS)) if node.exists(f"{_CLASS}/{name}/mtu")
        ]
        states: list[tuple[Labels, float]] = []
        infos: list[tuple[Labels, float]] = []
        for device in devices:
            where = f"{_CLASS}/{device}"
            state = read_text(node, f"{where}/operstate")
            states.append(((device,), int(state == "up")))
            words = [
                read_text(node, f"{where}/{name}") for name in ("address", "broadcast", "duplex")
            ]
            infos.append(((device, *words, state, read_text(node, f"{where}/ifalias")), 1))
        yield _UP, states
        yield _INFO, infos
        for file, (family, factor) in _CLASS_FAMILIES.items():
            rows: list[tuple[Labels, float]] = []
            for device in devices:
                value = read_number(node, f"{_CLASS}/{device}/{file}")
                if value is not None:
                    rows.append(((device,), value * factor))
            yield family, rows


_FIELDS = re.compile(
    r"(\w*_(InErrors|InErrs)|Ip_Forwarding|Ip(6|Ext)_(InOctets|OutOctets)|Icmp6?_(InMsgs|OutMsgs)"
    r"|TcpExt_(Listen\w*|Syncookies\w*|TCPSynRetrans|TCPTimeouts|TCPOFOQueue|TCPRcvQDrop)"
    r"|Tcp_(ActiveOpens|InSegs|OutSegs|OutRsts|PassiveOpens|RetransSegs|CurrEstab|MaxConn)"
    r"|Udp6?_(InDatagrams|OutDatagrams|NoPorts|RcvbufErrors|SndbufErrors))",
    re.ASCII,
)
"""The default of node_exporter 1.10, and Tcp_MaxConn for its dashboard."""


class NetstatCollector(Collector):
    """Counters of IP, ICMP, TCP and UDP."""

    name = "netstat"

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._families: dict[tuple[str, str], Family | None] = {}

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/net/netstat, snmp and snmp6."""
        yield from self._of([*read_parsed(node, "proc/net/netstat", _pairs)])
        yield from self._of([*read_parsed(node, "proc/net/snmp", _pairs)])
        with contextlib.suppress(NotHereError):  # IPv6 is off
            yield from self._of([*read_parsed(node, "proc/net/snmp6", parse_snmp6)])

    def _of(self, values: list[tuple[str, str, int]]) -> Iterator[tuple[Family, Rows]]:
        for protocol, field, value in values:
            key = (protocol, field)
            if key not in self._families:
                if len(self._families) > 2000:
                    continue
                name = f"{protocol}_{field}"
                wanted = _FIELDS.fullmatch(name) is not None
                self._families[key] = (
                    untyped(f"node_netstat_{name}", f"Statistic {protocol}{field}.")
                    if wanted
                    else None
                )
            family = self._families[key]
            if family is not None:
                yield family, [((), value)]


def _pairs(content: bytes) -> list[tuple[str, str, int]]:
    return [*parse_netstat(content)]


class SockstatCollector(Collector):
    """Sockets by protocol and state."""

    name = "sockstat"

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._families: dict[tuple[str, str], Family | None] = {}

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/net/sockstat and sockstat6."""
        found = read_parsed(node, "proc/net/sockstat", parse_sockstat)
        with contextlib.suppress(NotHereError):  # IPv6 is off
            found |= read_parsed(node, "proc/net/sockstat6", parse_sockstat)
        for protocol, numbers in found.items():
            for state, value in numbers.items():
                yield from self._yield(protocol, state, value)
                if state == "mem":  # pages
                    yield from self._yield(protocol, "mem_bytes", value * node.page_size)

    def _yield(self, protocol: str, state: str, value: int) -> Iterator[tuple[Family, Rows]]:
        key = (protocol, state)
        family = self._families.get(key)
        if family is None and len(self._families) < 500:
            family = self._families[key] = (
                gauge("node_sockstat_sockets_used", "Number of IPv4 sockets in use.")
                if protocol == "sockets"
                else gauge(
                    f"node_sockstat_{protocol}_{state}",
                    f"Number of {protocol} sockets in state {state}.",
                )
            )
        if family is not None:
            yield family, [((), value)]


_SOFTNET = {
    "processed": counter("node_softnet_processed_total", "Number of processed packets", "cpu"),
    "dropped": counter("node_softnet_dropped_total", "Number of dropped packets", "cpu"),
    "squeezed": counter(
        "node_softnet_times_squeezed_total",
        "Number of times processing packets ran out of quota", "cpu",
    ),
    "rps": counter("node_softnet_received_rps_total", "Number of software interrupts received",
                   "cpu"),
    "flow_limit": counter("node_softnet_flow_limit_count_total",
                          "Number of times flow limit has been reached", "cpu"),
    "backlog": gauge("node_softnet_backlog_len", "Softnet backlog status", "cpu"),
}  # fmt: skip


class SoftnetCollector(Collector):
    """Processed and dropped packets by CPU."""

    name = "softnet"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/net/softnet_stat."""
        cpus = read_parsed(node, "proc/net/softnet_stat", parse_softnet)
        for field, family in _SOFTNET.items():
            rows: list[tuple[Labels, float]] = []
            for each in cpus:
                value: int | None = getattr(each, field)
                if value is not None:
                    rows.append(((str(each.cpu),), value))
            yield family, rows


_ARP = gauge("node_arp_entries", "ARP entries by device", "device")


class ArpCollector(Collector):
    """Entries of the ARP table by interface."""

    name = "arp"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/net/arp."""
        entries = read_parsed(node, "proc/net/arp", parse_arp)
        yield _ARP, [((device,), number) for device, number in entries.items()]


_QUEUES = gauge(
    "node_udp_queues", "Number of allocated memory in the kernel for UDP datagrams in bytes.",
    "queue", "ip",
)  # fmt: skip


class UdpQueuesCollector(Collector):
    """Bytes in the queues of UDP sockets."""

    name = "udp_queues"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/net/udp and udp6."""
        rows: list[tuple[Labels, float]] = []
        missing: NotHereError | None = None
        for path, version in (("proc/net/udp", "v4"), ("proc/net/udp6", "v6")):
            try:
                sent, received = read_parsed(node, path, parse_udp_queues)
            except NotHereError as error:
                missing = error
                continue
            rows += [(("tx", version), sent), (("rx", version), received)]
        if missing is not None and not rows:
            raise missing
        yield _QUEUES, rows


_ENTRIES = gauge(
    "node_nf_conntrack_entries",
    "Number of currently allocated flow entries for connection tracking.",
)
_LIMIT = gauge("node_nf_conntrack_entries_limit", "Maximum size of connection tracking table.")
_STATISTICS = {
    name: gauge(f"node_nf_conntrack_stat_{name}", text)
    for name, text in (
        ("found", "Number of searched entries which were successful."),
        ("invalid", "Number of packets seen which can not be tracked."),
        ("ignore", "Number of packets seen which are already connected to a conntrack entry."),
        ("insert", "Number of entries inserted into the list."),
        ("insert_failed", "Number of entries for which list insertion was attempted but failed."),
        ("drop", "Number of packets dropped due to conntrack failure."),
        (
            "early_drop",
            (
                "Number of dropped conntrack entries to make room for new ones, if maximum table"
                " size was reached."
            ),
        ),
        (
            "search_restart",
            "Number of conntrack table lookups which had to be restarted due to hashtable resizes.",
        ),
    )
}


class ConntrackCollector(Collector):
    """Tracked connections and their limit."""

    name = "conntrack"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /proc/sys/net/netfilter and /proc/net/stat/nf_conntrack."""
        entries = read_number(node, "proc/sys/net/netfilter/nf_conntrack_count")
        limit = read_number(node, "proc/sys/net/netfilter/nf_conntrack_max")
        if entries is None or limit is None:
            raise NotHereError("/proc/sys/net/netfilter: no connections are tracked")
        yield _ENTRIES, [((), entries)]
        yield _LIMIT, [((), limit)]
        try:
            sums = read_parsed(node, "proc/net/stat/nf_conntrack", _sum_columns)
        except CcagentError:
            return
        for name, family in _STATISTICS.items():
            if name in sums:
                yield family, [((), sums[name])]


def _sum_columns(content: bytes) -> dict[str, int]:
    """Parse nf_conntrack: a line of names, then hexadecimal counts per CPU. Return sums by name."""
    lines = content.decode("ascii", "replace").split("\n")
    names = lines[0].split()
    sums = dict.fromkeys(names, 0)
    for line in lines[1:]:
        for name, word in zip(names, line.split(), strict=False):
            try:
                sums[name] += int(word, 16)
            except ValueError:
                return {}
    return sums


_BONDS = gauge(
    "node_bonding_slaves", "Number of configured slaves per bonding interface.", "master"
)
_ACTIVE = gauge("node_bonding_active", "Number of active slaves per bonding interface.", "master")


class BondingCollector(Collector):
    """Configured and active slaves of bonds."""

    name = "bonding"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read /sys/class/net/bonding_masters and the bonds in it."""
        masters = node.read_single(f"{_CLASS}/bonding_masters").decode("utf-8", "replace").split()
        slaves: list[tuple[Labels, float]] = []
        active: list[tuple[Labels, float]] = []
        for master in masters:
            names = read_text(node, f"{_CLASS}/{master}/bonding/slaves").split()
            states = [
                read_text(node, f"{_CLASS}/{name}/bonding_slave/mii_status") for name in names
            ]
            slaves.append(((master,), len(names)))
            active.append(((master,), states.count("up")))
        yield _BONDS, slaves
        yield _ACTIVE, active
