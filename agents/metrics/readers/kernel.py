"""Readers of tasks, paging, open files and network protocols, and of pressure stall information."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Reader, ReaderSettings
from ccagent.machine.procfs.network import parse_netstat, parse_sockstat
from ccagent.machine.procfs.system import (
    parse_file_nr,
    parse_kernel_stat,
    parse_pressure,
    parse_vmstat,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.machine.node import Node
    from ccagent.machine.procfs.network import Field
    from ccagent.machine.procfs.system import KernelStat


_KIB = 1024
_PROTOCOLS = {
    ("Tcp", "RetransSegs"): "tcp_retransmits",
    ("Tcp", "InErrs"): "tcp_errors",
    ("Tcp", "OutRsts"): "tcp_resets",
    ("Tcp", "ActiveOpens"): "tcp_opened",
    ("Tcp", "PassiveOpens"): "tcp_accepted",
    ("Udp", "InErrors"): "udp_errors",
    ("TcpExt", "ListenDrops"): "tcp_listen_drops",
    ("TcpExt", "TCPTimeouts"): "tcp_timeouts",
}
"""Counters by protocol and field."""
_CONNECTIONS = ("Tcp", "CurrEstab")


def _metric(unit: str, description: str, source: str) -> Metric:
    return Metric(unit=unit, type="node", description=description, source=source, is_default=False)


def _network(description: str, field: str) -> Metric:
    return _metric("1/s", description, f"/proc/net/{field}")


class KernelReader(Reader[ReaderSettings]):
    """On-demand metrics of tasks, paging, open files, sockets, and TCP and UDP errors."""

    name = "kernel"
    metrics: ClassVar[dict[str, Metric]] = {
        "procs_running": _metric("", "running and runnable tasks", "/proc/stat, procs_running"),
        "procs_blocked": _metric("", "tasks blocked by I/O", "/proc/stat, procs_blocked"),
        "page_in": _metric("B/s", "read from block devices", "/proc/vmstat, pgpgin * 1024"),
        "page_out": _metric("B/s", "written to block devices", "/proc/vmstat, pgpgout * 1024"),
        "open_files": _metric("", "open files of all processes", "/proc/sys/fs/file-nr, first"),
        "sockets": _metric("", "sockets in use", "/proc/net/sockstat, sockets: used"),
        "tcp_connections": _metric("", "established connections", "/proc/net/snmp, CurrEstab"),
        "tcp_retransmits": _network("segments retransmitted", "snmp, Tcp: RetransSegs"),
        "tcp_errors": _network("segments received with errors", "snmp, Tcp: InErrs"),
        "tcp_resets": _network("resets sent by this node", "snmp, Tcp: OutRsts"),
        "tcp_opened": _network("connections opened by this node", "snmp, Tcp: ActiveOpens"),
        "tcp_accepted": _network("connections opened by remote hosts", "snmp, Tcp: PassiveOpens"),
        "tcp_timeouts": _network("connection timeouts", "netstat, TcpExt: TCPTimeouts"),
        "tcp_listen_drops": _network("connections dropped", "netstat, TcpExt: ListenDrops"),
        "udp_errors": _network("datagrams received with errors", "snmp, Udp: InErrors"),
    }

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read the files if a metric is wanted. Raise NotHereError if all are missing."""
        self.forget_errors()
        if not self.is_wanted:
            return []
        found: list[Gauge | Count] = []
        for path, (parse, select) in _FILES.items():
            parsed = self.try_parsed(node, path, parse)
            if parsed is not None:
                found += select(parsed)
        self.require(found)
        return found


def select_tasks(stat: KernelStat) -> list[Gauge | Count]:
    """Return the running and blocked tasks of /proc/stat."""
    return [Gauge(name, value) for name, value in stat.tasks.items()]


def select_paging(events: dict[str, int]) -> list[Gauge | Count]:
    """Return B paged in and out of /proc/vmstat."""
    names = {"page_in": "pgpgin", "page_out": "pgpgout"}
    return [Count(name, events[key] * _KIB) for name, key in names.items() if key in events]


def select_open_files(numbers: tuple[int, int]) -> list[Gauge | Count]:
    """Return the open files of /proc/sys/fs/file-nr."""
    return [Gauge("open_files", numbers[0])]


def select_sockets(sockets: dict[str, dict[str, int]]) -> list[Gauge | Count]:
    """Return the sockets in use of /proc/net/sockstat."""
    used = sockets.get("sockets", {}).get("used")
    return [] if used is None else [Gauge("sockets", used)]


def select_protocols(fields: dict[Field, int]) -> list[Gauge | Count]:
    """Return the counters of /proc/net/snmp or netstat."""
    found: list[Gauge | Count] = [
        Count(metric, fields[field]) for field, metric in _PROTOCOLS.items() if field in fields
    ]
    if _CONNECTIONS in fields:
        found.append(Gauge("tcp_connections", fields[_CONNECTIONS]))
    return found


_FILES: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], list[Gauge | Count]]]] = {
    "proc/stat": (parse_kernel_stat, select_tasks),
    "proc/vmstat": (parse_vmstat, select_paging),
    "proc/sys/fs/file-nr": (parse_file_nr, select_open_files),
    "proc/net/sockstat": (parse_sockstat, select_sockets),
    "proc/net/snmp": (parse_netstat, select_protocols),
    "proc/net/netstat": (parse_netstat, select_protocols),
}
"""Parsers that other readers share, and the values of this reader."""

_PERCENT = 100 / 1e6
"""Factor from microseconds per second to percent."""

_RESOURCES = {
    "cpu": "a CPU",
    "memory": "memory",
    "io": "a disk or file system",
    "irq": "the end of interrupts",
}
_EXTENTS = {"some": "at least one task waits", "full": "all tasks are stalled, waiting"}
_UNTOLD = ("irq", "some")


def _metrics() -> dict[str, Metric]:
    """Return the metrics, see Documentation/accounting/psi.rst of Linux."""
    metrics: dict[str, Metric] = {}
    for resource, what in _RESOURCES.items():
        for extent, who in _EXTENTS.items():
            if (resource, extent) == _UNTOLD:
                continue
            # cpu full is meaningless for the node as a whole: 0 since Linux 5.18, noise before.
            is_default = (resource, extent) != ("cpu", "full")
            description = f"share of time in which {who} for {what}"
            metrics[f"pressure_{resource}_{extent}"] = Metric(
                unit="%",
                type="node",
                description=description,
                source=f"/proc/pressure/{resource}, {extent}: total",
                aggregation="mean",
                scale=_PERCENT,
                is_default=is_default,
            )
            metrics[f"pressure_{resource}_{extent}_avg10"] = Metric(
                unit="%",
                type="node",
                description=f"{description}, over the last ten seconds",
                source=f"/proc/pressure/{resource}, {extent}: avg10",
                aggregation="mean",
                is_default=is_default,
            )
    return metrics


class PressureReader(Reader[ReaderSettings]):
    """Pressure of CPU, memory, I/O (since Linux 4.20) and interrupts (since 6.1)."""

    name = "pressure"
    metrics: ClassVar[dict[str, Metric]] = _metrics()

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read /proc/pressure. Raise NotHereError for a kernel without it."""
        self.forget_errors()
        found: list[Gauge | Count] = []
        for resource in _RESOURCES:
            pressures = self.try_parsed(node, f"proc/pressure/{resource}", parse_pressure) or {}
            for extent, pressure in pressures.items():
                if (resource, extent) != _UNTOLD:
                    metric = f"pressure_{resource}_{extent}"
                    found.append(Count(metric, pressure.total))
                    found.append(Gauge(f"{metric}_avg10", pressure.avg10))
        self.require(found)
        return found
