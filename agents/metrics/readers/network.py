"""Reader of traffic of network interfaces, summed over hardware interfaces."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.metrics.readers.base import (
    NODE,
    Count,
    Gauge,
    Metric,
    Reader,
    ReaderSettings,
    Scope,
)
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.counters import Sums
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.network import parse_device, split_devices

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ccagent.machine.node import Node

_TRAFFIC = "proc/net/dev"
_INTERFACES = "sys/class/net"
_KNOWN_FOR = 60.0
_WRAPS_AT = 0xFFFF_FFFF

_IN = {
    "net_bytes_in": ("bytes", "B/s", "bytes received"),
    "net_pkts_in": ("packets", "1/s", "packets received"),
    "net_errors_in": ("errs", "1/s", "packets received with errors"),
    "net_drops_in": ("drop", "1/s", "packets received and dropped"),
}
_OUT = {
    "net_bytes_out": ("bytes", "B/s", "bytes sent"),
    "net_pkts_out": ("packets", "1/s", "packets sent"),
    "net_errors_out": ("errs", "1/s", "packets not sent because of errors"),
    "net_drops_out": ("drop", "1/s", "packets dropped instead of being sent"),
}
_METRICS = (*_IN, *_OUT)


def choose_interfaces(
    interfaces: Mapping[str, Collection[str]],
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> set[str]:
    """Return the interfaces that count.

    interfaces: by interface, the file names of its directory.

    Hardware has a `device`, also in virtual machines; bridges, VLANs, tunnels and veth have none. A
    bond of hardware, and a device above others (hv_netvsc, net_failover), includes the traffic of
    its members and replaces them. include, exclude: patterns of names. The loopback counts only if
    `include` has its name.
    """
    hardware = {name for name, files in interfaces.items() if "device" in files}
    names = set(hardware)
    for name, files in interfaces.items():
        if any(fnmatchcase(name, pattern) for pattern in include):
            names.add(name)
        elif "bonding" in files:
            slaves = _below(files)
            if slaves and slaves <= hardware:
                names.add(name)
    for name in tuple(names):
        slaves = _below(interfaces[name])
        names -= {slave for slave in slaves if "master" in interfaces.get(slave, ())}
    names = {name for name in names if not any(fnmatchcase(name, each) for each in exclude)}
    return names if "lo" in include and "lo" not in exclude else names - {"lo"}


def _below(files: Collection[str]) -> set[str]:
    return {name[6:] for name in files if name.startswith("lower_")}


class NetworkReaderSettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.network]."""

    include: Annotated[
        tuple[str, ...], Meta(description="patterns of additional interfaces to count")
    ] = ()
    exclude: Annotated[tuple[str, ...], Meta(description="patterns of interfaces to ignore")] = ()
    per_interface: Annotated[
        bool, Meta(description="also send values of each interface: stype=network, stype-id=NAME")
    ] = False


class NetworkReader(Reader[NetworkReaderSettings]):
    """Bytes, packets, errors and drops of the node, optionally of each interface."""

    name = "network"
    Settings = NetworkReaderSettings
    metrics: ClassVar[dict[str, Metric]] = {
        metric: Metric(
            unit=unit,
            type="node",
            description=f"{description}, all hardware network interfaces",
            source=f"/proc/net/dev, {column} of {direction}",
        )
        for direction, table in (("Receive", _IN), ("Transmit", _OUT))
        for metric, (column, unit, description) in table.items()
    } | {
        "net_bw": Metric(
            unit="B/s",
            type="node",
            description="bytes received and sent, all hardware network interfaces",
            source="/proc/net/dev, bytes of Receive and of Transmit",
        )
    }

    def __init__(self, settings: NetworkReaderSettings | None = None) -> None:
        super().__init__(settings)
        # 32 bits: some drivers have counters of the hardware's width.
        self._sums = Sums(len(_METRICS), _WRAPS_AT)
        self._seen: set[str] = set()
        self._chosen: set[str] = set()
        self._chosen_until = 0.0

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read /proc/net/dev.

        Read /sys/class/net after a change of interfaces, and every minute.
        """
        counters = self._read_counters(node)
        if not counters:
            if self.errors:
                return []
            raise NotHereError(f"no hardware among the network interfaces: {sorted(self._seen)}")
        self._sums.add(counters)
        found: list[Gauge | Count] = []
        if self.settings.per_interface:
            for name in sorted(self._sums.parts):
                found += _counts(self._sums.parts[name], Scope(stype="network", stype_id=name))
        found += _counts(self._sums.total, NODE)
        return found

    def read_raw(self, node: Node) -> Iterable[Gauge | Count]:
        """Read the counters of each interface since its creation."""
        return [
            Count(metric, value, Scope(stype="network", stype_id=name))
            for name, traffic in sorted(self._read_counters(node).items())
            for metric, value in zip(_METRICS, traffic, strict=True)
        ]

    def _read_counters(self, node: Node) -> dict[str, tuple[int, ...]]:
        """Return the counters of the interfaces that count, in the order of the metrics.

        A damaged interface adds to `errors`.
        """
        self.forget_errors()
        interfaces = read_parsed(node, _TRAFFIC, split_devices)
        self._choose(node, interfaces.keys())
        counters: dict[str, tuple[int, ...]] = {}
        for name in self._chosen:
            try:
                values = parse_device(interfaces[name])
            except UnparsableError as error:
                self.errors.append(f"/{_TRAFFIC}: {name!r}: {error}")
            else:
                counters[name] = values[:4] + values[8:12]
        return counters

    def _choose(self, node: Node, names: Collection[str]) -> None:
        now = node.clock.monotonic()
        if names == self._seen and now < self._chosen_until:
            return
        directories: dict[str, list[str]] = {}
        for name in names:
            files = self.try_list(node, f"{_INTERFACES}/{name}")
            if files:
                directories[name] = files
        self._chosen = choose_interfaces(directories, self.settings.include, self.settings.exclude)
        self._seen = set(names)
        self._chosen_until = now + _KNOWN_FOR


def _counts(values: list[int], scope: Scope) -> Iterable[Count]:
    yield from (Count(metric, value, scope) for metric, value in zip(_METRICS, values, strict=True))
    yield Count("net_bw", values[0] + values[4], scope)
