"""Readers of InfiniBand, Omni-Path and RoCE ports, with their check, and of RDMA objects of jobs.

Source: /sys/class/infiniband, see Documentation/ABI/stable/sysfs-class-infiniband of Linux.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.counters import Sums
from ccagent.machine.infiniband_ports import ACTIVE, DEVICES, parse_state
from ccagent.machine.parsed import read_parsed
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.machine.node import Node
    from ccagent.machine.rdma import RdmaUse

_KNOWN_FOR = 60.0
_WORD = 4
_FLIT = 8
_OMNI_PATH = ("hfi1", "opa")
"""Prefixes of devices with a driver that counts flits (pma_get_opa_port_dctrs() in hfi1/mad.c).
Some releases of rdma-core name the devices opa.
"""
_SATURATED = (0xFFFF_FFFF, LARGEST_UINT)
_COUNTERS = {
    "ib_recv": "port_rcv_data",
    "ib_xmit": "port_xmit_data",
    "ib_recv_pkts": "port_rcv_packets",
    "ib_xmit_pkts": "port_xmit_packets",
}
_HARDWARE = {
    "ib_recv": "rx_bytes",
    "ib_xmit": "tx_bytes",
    "ib_recv_pkts": "rx_pkts",
    "ib_xmit_pkts": "tx_pkts",
}
"""Counters of drivers without the standard ones, in bytes and packets: efa, bnxt_re."""
_RATE = re.compile(rb"\s*(\d{1,6}(?:\.\d{1,6})?) Gb/sec")

_ASKED = "netlink of RDMA, as `rdma resource show"
_COUNTED = "netlink of RDMA, as `rdma statistic qp show`, if counted by process"


class Port(NamedTuple):
    """A port: its path, and (metric, path, factor to B or packets) of its counters."""

    path: str
    counters: tuple[tuple[str, str, int], ...]


def parse_counter(content: bytes) -> int | None:
    """Parse a counter. Return None for `N/A (no PMA)`.

    Raise UnparsableError if it is invalid or saturated: 32-bit counters do not wrap.
    """
    text = content.strip()
    if text.startswith(b"N/A"):
        return None
    if not text.isdigit() or len(text) > 20 or (value := int(text)) > LARGEST_UINT:
        raise UnparsableError(f"not a counter: {text[:80]!r}")
    if value in _SATURATED:
        raise UnparsableError(f"saturated at {value}, until it is reset (perfquery -R)")
    return value


def parse_rate(content: bytes) -> float:
    """Return the rate of a port, `100 Gb/sec (4X EDR)`, in B/s. Raise UnparsableError."""
    match = _RATE.match(content)
    if match is None:
        raise UnparsableError(f"not a rate: {content[:80]!r}")
    return float(match[1]) * 1e9 / 8


class InfinibandReader(Reader[ReaderSettings]):
    """Bytes and packets of all ports, and the number of active ports.

    RoCE ports (link layer Ethernet) count only RDMA (pma_cnt_ext_assign() in mlx5/mad.c). The
    cards' network interfaces do not count RDMA, so nothing is counted twice.
    """

    name = "infiniband"
    metrics: ClassVar[dict[str, Metric]] = {
        "ib_recv": Metric("B/s", "node", "bytes received, all ports",
            "/sys/class/infiniband/*/ports/*/counters/port_rcv_data in words of 4 B"
            " (hfi1: flits of 8 B), or counters_ext/port_rcv_data_64, or hw_counters/rx_bytes"),
        "ib_xmit": Metric("B/s", "node", "bytes sent, all ports",
            "/sys/class/infiniband/*/ports/*/counters/port_xmit_data in words of 4 B"
            " (hfi1: flits of 8 B), or counters_ext/port_xmit_data_64, or hw_counters/tx_bytes"),
        "ib_recv_pkts": Metric("1/s", "node", "packets received, all ports",
            "/sys/class/infiniband/*/ports/*/counters/port_rcv_packets,"
            " or counters_ext/port_rcv_packets_64, or hw_counters/rx_pkts"),
        "ib_xmit_pkts": Metric("1/s", "node", "packets sent, all ports",
            "/sys/class/infiniband/*/ports/*/counters/port_xmit_packets,"
            " or counters_ext/port_xmit_packets_64, or hw_counters/tx_pkts"),
        "ib_ports_active": Metric("", "node", "ports in state ACTIVE, updated every minute",
            "/sys/class/infiniband/*/ports/*/state", is_default=False),
        "ib_rate": Metric("B/s", "node",
            "link rate of all active ports in one direction, updated every minute",
            "/sys/class/infiniband/*/ports/*/rate", is_default=False),
    }  # fmt: skip

    def __init__(self, settings: ReaderSettings | None = None) -> None:
        super().__init__(settings)
        self._sums = {metric: Sums(1) for metric in _COUNTERS}
        self._ports: list[Port] = []
        self._links: list[Gauge] = []
        self._known_until: float | None = None

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of the ports."""
        yield Check("network", "InfiniBand", partial(find_ports, node))

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read the counters. Search ports and links every minute."""
        self._look_for_ports(node)
        counters: dict[str, dict[str, tuple[int]]] = {metric: {} for metric in _COUNTERS}
        for port, metric, value in self._read_counters(node):
            counters[metric][port.path] = (value,)
        found: list[Gauge | Count] = []
        for metric, values in counters.items():
            self._sums[metric].add(values)
            if values:
                found.append(Count(metric, self._sums[metric].total[0]))
        return found + self._links

    def read_raw(self, node: Node) -> Iterable[Gauge | Count]:
        """Read the counters of each port."""
        self._look_for_ports(node)
        found: list[Gauge | Count] = []
        for port, metric, value in self._read_counters(node):
            device, _, number = port.path.removeprefix(f"{DEVICES}/").partition("/ports/")
            scope = Scope(stype="port", stype_id=f"{device}/{number}")
            found.append(Count(metric, value, scope))
        return found + self._links

    def _look_for_ports(self, node: Node) -> None:
        """Find ports and links if unknown. Raise NotHereError without a port."""
        self.forget_errors()
        now = node.clock.monotonic()
        if self._known_until is None or now >= self._known_until:
            self._ports = self._find_ports(node)
            self._links = self._read_links(node)
            self._known_until = now + _KNOWN_FOR
        if not self._ports and not self.errors:
            self._known_until = None
            raise NotHereError(f"/{DEVICES}: no port that counts")

    def _read_counters(self, node: Node) -> Iterator[tuple[Port, str, int]]:
        """Yield port, metric, and B or packets, of each readable counter."""
        for port in self._ports:
            for metric, path, factor in port.counters:
                value = self.try_parsed(node, path, parse_counter)
                if value is not None:
                    yield port, metric, value * factor

    def _find_ports(self, node: Node) -> list[Port]:
        ports: list[Port] = []
        for device in sorted(node.list(DEVICES)):
            for name in sorted(self.try_list(node, f"{DEVICES}/{device}/ports")):
                path = f"{DEVICES}/{device}/ports/{name}"
                counters = self._find_counters(node, device, path)
                if counters:
                    ports.append(Port(path, counters))
        return ports

    def _find_counters(
        self, node: Node, device: str, port: str
    ) -> tuple[tuple[str, str, int], ...]:
        """Find the 64-bit counters of a port: before Linux 4.5 they are in counters_ext.

        Without standard counters those of the hardware count.
        """
        files = {
            f"{directory}/{name}"
            for directory in ("counters", "counters_ext", "hw_counters")
            for name in self.try_list(node, f"{port}/{directory}")
        }
        unit = _FLIT if device.startswith(_OMNI_PATH) else _WORD
        counters: list[tuple[str, str, int]] = []
        for metric, name in _COUNTERS.items():
            factor = unit if name.endswith("_data") else 1
            for file, scale in (
                (f"counters_ext/{name}_64", factor),
                (f"counters/{name}", factor),
                (f"hw_counters/{_HARDWARE[metric]}", 1),
            ):
                if file in files:
                    counters.append((metric, f"{port}/{file}", scale))
                    break
        return tuple(counters)

    def _read_links(self, node: Node) -> list[Gauge]:
        states = {
            port: self.try_parsed(node, f"{port.path}/state", parse_state) for port in self._ports
        }
        active = [port for port, state in states.items() if state == ACTIVE]
        rates = [self.try_parsed(node, f"{port.path}/rate", parse_rate) for port in active]
        links: list[Gauge] = []
        if any(state is not None for state in states.values()):
            links.append(Gauge("ib_ports_active", len(active)))
        if None not in rates:
            links.append(Gauge("ib_rate", sum(rate for rate in rates if rate is not None)))
        return links


def find_ports(node: Node) -> CheckResult:
    """Return the result with the active ports."""
    ports = dict(_read_states(node))
    unreadable = [name for name, state in ports.items() if state is None]
    active = [name for name, state in ports.items() if state == ACTIVE]
    if not ports:
        fix = "if the node has a card, load its driver (mlx5_ib, hfi1, ...)"
        return CheckResult("missing", f"no ports in /{DEVICES}", fix)
    if unreadable:
        fix = "see messages of the driver in the kernel log (dmesg)"
        return CheckResult("problem", f"the state of {', '.join(unreadable)} can't be read", fix)
    if not active:
        fix = "check the cable and the subnet manager (ibstat)"
        return CheckResult("problem", f"no port is active: {', '.join(ports)}", fix)
    found = f"{len(active)} of {len(ports)} ports active: {', '.join(active)}"
    return CheckResult("good", found)


def _read_states(node: Node) -> Iterator[tuple[str, int | None]]:
    """Yield each port with its state; None for an unreadable state."""
    for device in node.list_names(DEVICES):
        for port in node.list_names(f"{DEVICES}/{device}/ports"):
            try:
                path = f"{DEVICES}/{device}/ports/{port}/state"
                yield f"{device}/{port}", read_parsed(node, path, parse_state)
            except CcagentError:
                yield f"{device}/{port}", None


def _objects(name: str, text: str) -> Metric:
    return Metric("", "node", f"{text} of the job", f"{_ASKED} {name}`", is_default=False)


def _requests(text: str, field: str) -> Metric:
    return Metric("1/s", "node", f"{text} of the job", f"{_COUNTED}: {field}", is_default=False)


class RdmaReader(Reader[ReaderSettings]):
    """Queue pairs, completion queues, memory regions and contexts of jobs, and their requests."""

    name = "rdma"
    metrics: ClassVar[dict[str, Metric]] = {
        "job_rdma_queue_pairs": _objects("qp", "queue pairs"),
        "job_rdma_completion_queues": _objects("cq", "completion queues"),
        "job_rdma_completion_entries": _objects("cq", "entries of the completion queues"),
        "job_rdma_memory_regions": _objects("mr", "memory regions"),
        "job_rdma_memory": Metric("B", "node", "registered memory of the job",
            f"{_ASKED} mr`: mrlen", is_default=False),
        "job_rdma_contexts": _objects("ctx", "contexts"),
        "job_rdma_receive_queues": _objects("srq", "shared receive queues"),
        "job_rdma_write_requests": _requests("received write requests", "rx_write_requests"),
        "job_rdma_read_requests": _requests("received read requests", "rx_read_requests"),
        "job_rdma_atomic_requests": _requests("received atomic requests", "rx_atomic_requests"),
    }  # fmt: skip

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Ask the kernel. Raise NotHereError without a device, ProgramError if it refuses."""
        from ccagent.machine.rdma import read_job_rdma, sum_job_rdma

        return list(make_job_values(sum_job_rdma(read_job_rdma(node))))


def make_job_values(jobs: dict[int, RdmaUse]) -> Iterator[Gauge | Count]:
    """Yield the metrics of jobs. A job with a queue pair but without a context has 0 of these."""
    for job, use in sorted(jobs.items()):
        scope = Scope("node", "", "job", str(job))
        for metric, known in RdmaReader.metrics.items():
            name = metric.removeprefix("job_rdma_")
            if known.unit != "1/s":
                yield Gauge(metric, use.get(name, 0), scope)
            elif (count := use.get(f"rx_{name}")) is not None:
                yield Count(metric, count, scope)
