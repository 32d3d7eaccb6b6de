"""Network collectors: netdev, netclass, netstat, sockstat, softnet and others."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections import Counter
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.exporter.collector import Collector, read_number, read_numbers, read_text
from ccagent.exporter.exposition import counter, gauge, untyped
from ccagent.machine.cpus import CPUS
from ccagent.machine.parsed import parse_or, read_parsed
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
from ccagent.machine.procfs.system import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.exposition import Family, FamilyRows, Labels
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.network import Field

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

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._excluded = re.compile(settings.node_exporter.network_exclude)

    def collect(self, node: Node) -> Iterator[FamilyRows]:
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
        files = ((own, f"{_CLASS}/{own[0]}/statistics/rx_nohandler") for own in devices)
        yield _NO_HANDLER, read_numbers(node, files)


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
_WORDS = ("address", "broadcast", "duplex", "operstate", "ifalias")
_IFF_UP = 1
_INFO = gauge(
    "node_network_info", "Non-numeric data from /sys/class/net/<iface>, value is always 1.",
    "device", *_WORDS, "adminstate",
)  # fmt: skip


class NetclassCollector(Collector):
    """Properties of interfaces: state, carrier, MTU, speed, addresses."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._places: dict[str, int] | None = None
        self._paths: dict[str, list[tuple[Labels, str]]] = {}

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the files in /sys/class/net."""
        files = self.keep_files(node)
        places: dict[str, int] = {}
        for name in sorted(node.list(_CLASS)):
            with contextlib.suppress(CcagentError):
                places[name] = node.inode(f"{_CLASS}/{name}")
        if places != self._places:
            files.close()  # an open file stays that of its interface when names are exchanged
            self._places = places
            self._paths = {
                file: [((name,), f"{_CLASS}/{name}/{file}") for name in places]
                for file in _CLASS_FAMILIES
            }
        rows = {
            file: read_numbers(files, self._paths[file], factor)
            for file, (_, factor) in _CLASS_FAMILIES.items()
        }
        devices = [device for device, _ in rows["mtu"]]
        words = [
            [read_text(files, f"{_CLASS}/{device}/{name}") for name in _WORDS]
            for (device,) in devices
        ]
        yield (
            _UP,
            [
                (device, int(state == "up"))
                for device, (*_, state, _) in zip(devices, words, strict=True)
            ],
        )
        flags = dict(rows["flags"])
        admin = ["up" if int(flags.get(device, 0)) & _IFF_UP else "down" for device in devices]
        infos = zip(devices, words, admin, strict=True)
        yield _INFO, [((*device, *each, state), 1) for device, each, state in infos]
        for file, (family, _) in _CLASS_FAMILIES.items():
            yield family, rows[file]


_FIELDS = re.compile(
    r"(\w*_(InErrors|InErrs)|Ip_Forwarding|Ip(6|Ext)_(InOctets|OutOctets)|Icmp6?_(InMsgs|OutMsgs)"
    r"|TcpExt_(Listen\w*|Syncookies\w*|TCPSynRetrans|TCPTimeouts|TCPOFOQueue|TCPRcvQDrop)"
    r"|Tcp_(ActiveOpens|InSegs|OutSegs|OutRsts|PassiveOpens|RetransSegs|CurrEstab|MaxConn)"
    r"|Udp6?_(InDatagrams|OutDatagrams|NoPorts|RcvbufErrors|SndbufErrors))",
    re.ASCII,
)
"""The default of node_exporter 1.10, and Tcp_MaxConn for its dashboard."""


@lru_cache(8)
def _name_fields(fields: tuple[Field, ...]) -> list[tuple[Field, Family]]:
    return [
        ((protocol, field), untyped(f"node_netstat_{name}", f"Statistic {protocol}{field}."))
        for protocol, field in fields
        if _FIELDS.fullmatch(name := f"{protocol}_{field}")
    ]


def read_netstat(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/net/netstat, snmp and snmp6: counters of IP, ICMP, TCP and UDP."""
    values = read_parsed(node, "proc/net/netstat", parse_netstat)
    values = values | read_parsed(node, "proc/net/snmp", parse_netstat)
    with contextlib.suppress(NotHereError):  # IPv6 is off
        values |= read_parsed(node, "proc/net/snmp6", parse_snmp6)
    for field, family in _name_fields((*values,)):
        yield family, [((), values[field])]


@lru_cache(500)
def _name_sockets(protocol: str, state: str) -> Family:
    if protocol == "sockets":
        return gauge("node_sockstat_sockets_used", "Number of IPv4 sockets in use.")
    text = f"Number of {protocol} sockets in state {state}."
    return gauge(f"node_sockstat_{protocol}_{state}", text)


def read_sockstat(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/net/sockstat and sockstat6: sockets by protocol and state."""
    found = read_parsed(node, "proc/net/sockstat", parse_sockstat)
    with contextlib.suppress(NotHereError):  # IPv6 is off
        found = found | read_parsed(node, "proc/net/sockstat6", parse_sockstat)
    for protocol, numbers in found.items():
        for state, value in numbers.items():
            yield _name_sockets(protocol, state), [((), value)]
            if state == "mem":  # pages
                yield _name_sockets(protocol, "mem_bytes"), [((), value * node.page_size)]


_SOFTNET = {
    "processed": counter("node_softnet_processed_total", "Number of processed packets", "cpu"),
    "dropped": counter("node_softnet_dropped_total", "Number of dropped packets", "cpu"),
    "squeezed": counter(
        "node_softnet_times_squeezed_total",
        "Number of times processing packets ran out of quota", "cpu",
    ),
    "rps": counter("node_softnet_received_rps_total", "Number of times cpu woken up received_rps",
                   "cpu"),
    "flow_limit": counter("node_softnet_flow_limit_count_total",
                          "Number of times flow limit has been reached", "cpu"),
    "backlog": gauge("node_softnet_backlog_len", "Softnet backlog status", "cpu"),
}  # fmt: skip


def read_softnet(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/net/softnet_stat: processed and dropped packets by CPU."""
    cpus = read_parsed(node, "proc/net/softnet_stat", parse_softnet)
    labels = [(str(number),) for number in _number_cpus(node, [each.cpu for each in cpus])]
    for field, family in _SOFTNET.items():
        values = map(attrgetter(field), cpus)
        yield family, [pair for pair in zip(labels, values, strict=True) if pair[1] is not None]


def _number_cpus(node: Node, cpus: list[int | None]) -> list[int]:
    """Return the numbers of cpus; if the kernel printed none, those of the online cpus."""
    printed = [cpu for cpu in cpus if cpu is not None]
    if len(printed) == len(cpus):
        return printed
    online = parse_or(node, f"{CPUS}/online", parse_cpu_list, list[int]())
    return online if len(online) == len(cpus) else [*range(len(cpus))]


_ARP = gauge("node_arp_entries", "ARP entries by device", "device")


def read_arp(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/net/arp: entries of the ARP table by interface."""
    entries = read_parsed(node, "proc/net/arp", parse_arp)
    yield _ARP, [((device,), number) for device, number in entries.items()]


_QUEUES = gauge(
    "node_udp_queues", "Number of allocated memory in the kernel for UDP datagrams in bytes.",
    "queue", "ip",
)  # fmt: skip


def read_udp_queues(node: Node) -> Iterator[FamilyRows]:
    """Read /proc/net/udp and udp6: bytes in the queues of UDP sockets."""
    rows: list[tuple[Labels, float]] = []
    missing = ""
    for path, version in (("proc/net/udp", "v4"), ("proc/net/udp6", "v6")):
        try:
            sent, received = read_parsed(node, path, parse_udp_queues)
        except NotHereError as error:
            missing = str(error)  # not the error: its traceback holds this reading
            continue
        rows += [(("tx", version), sent), (("rx", version), received)]
    if missing and not rows:
        raise NotHereError(missing)
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


def read_conntrack(node: Node) -> Iterator[FamilyRows]:
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


def read_bonding(node: Node) -> Iterator[FamilyRows]:
    """Read /sys/class/net/bonding_masters and the bonds in it."""
    masters = node.read_single(f"{_CLASS}/bonding_masters").decode("utf-8", "replace").split()
    slaves: list[tuple[Labels, float]] = []
    active: list[tuple[Labels, float]] = []
    for master in masters:
        names = read_text(node, f"{_CLASS}/{master}/bonding/slaves").split()
        states = [read_text(node, f"{_CLASS}/{name}/bonding_slave/mii_status") for name in names]
        slaves.append(((master,), len(names)))
        active.append(((master,), states.count("up")))
    yield _BONDS, slaves
    yield _ACTIVE, active


_TCP = gauge("node_tcp_connection_states", "Number of connection states.", "state")
_TCP_STATES = (
    "established", "syn_sent", "syn_recv", "fin_wait1", "fin_wait2", "time_wait", "close",
    "close_wait", "last_ack", "listen", "closing",
)  # fmt: skip
"""By number, from 1: include/net/tcp_states.h of Linux."""
_SOCK_DIAG_BY_FAMILY, _DUMP, _MESSAGE_DONE, _MESSAGE_ERROR = 20, 0x301, 3, 2
_NETLINK_SOCK_DIAG = 4
_MESSAGE = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_STATE = _MESSAGE.size + 1
_WAITING = struct.Struct("=II")
_WAITING_AT = _MESSAGE.size + 56
"""Offset of the bytes received and sent that wait: struct inet_diag_msg of linux/inet_diag.h."""
_ANSWER = 1 << 18
_KERNEL_PATIENCE = 2.0


def read_tcpstat(node: Node) -> Iterator[FamilyRows]:
    """Ask the kernel for its TCP sockets by sock_diag(7). Raise NotHereError if it refuses."""
    if not node.is_live:
        raise NotHereError("a recorded machine has no sockets")
    states: Counter[str] = Counter()
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
                kernel.settimeout(_KERNEL_PATIENCE)
                request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0xFFF)
                size = _MESSAGE.size + len(request)
                kernel.send(_MESSAGE.pack(size, _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + request)
                while add_sockets(kernel.recv(_ANSWER), states):
                    pass
    except OSError as error:
        raise NotHereError(f"sock_diag: {error.strerror or error}") from error
    yield _TCP, [((state,), number) for state, number in states.items()]


def add_sockets(answer: bytes, states: Counter[str]) -> bool:
    """Count the sockets of an answer of sock_diag(7) by state, and their waiting bytes.

    Return whether more answers follow.
    """
    offset = 0
    while offset + _MESSAGE.size <= len(answer):
        size, kind, *_ = _MESSAGE.unpack_from(answer, offset)
        if kind in {_MESSAGE_DONE, _MESSAGE_ERROR} or size < _WAITING_AT + _WAITING.size:
            return False
        if offset + size > len(answer):
            break
        number = answer[offset + _STATE]
        if 0 < number <= len(_TCP_STATES):
            states[_TCP_STATES[number - 1]] += 1
        received, sent = _WAITING.unpack_from(answer, offset + _WAITING_AT)
        states["rx_queued_bytes"] += received
        states["tx_queued_bytes"] += sent
        offset += (size + 3) & ~3
    return True
