"""Mounts and network traffic of a job, and their sums over the series of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.stores.metrics.line_keys import MOUNT, NETWORK, read_part
from ccagent.views.amounts import mean_of_known, number, plural, short_size
from ccagent.views.job.figures import LARGEST_VALUE
from ccagent.views.job.measuring import usual_gap
from ccagent.views.terminal import clean

if TYPE_CHECKING:
    from collections.abc import Sequence


_MOST = 5


class JobMount(msgspec.Struct, frozen=True, kw_only=True):
    """I/O of a job on a mount. read, written: B. metadata: operations such as open.

    busy: seconds in reads and writes, of all its tasks; None: not measured.
    """

    point: str
    type: str
    source: str
    read: int = 0
    written: int = 0
    reads: int = 0
    writes: int = 0
    metadata: int = 0
    busy: float | None = None

    @property
    def latency(self) -> float | None:
        """Return the mean time of a read or write in ms; None if not measured."""
        calls = self.reads + self.writes
        return 1000 * self.busy / calls if self.busy is not None and calls else None


class JobNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """Payload of a job on the network in B. protocol: `tcp`, `udp` or `ports`.

    ports: all bytes through the network ports of exclusive nodes.
    """

    protocol: str
    is_loopback: bool
    received: int = 0
    sent: int = 0

    @property
    def name(self) -> str:
        """Return the name for people."""
        if self.protocol == PORTS:
            return "ports of its nodes (InfiniBand and others)"
        return f"{self.protocol.upper()}{' within a node' if self.is_loopback else ''}"


class JobMounts(msgspec.Struct, frozen=True, kw_only=True):
    """The mounts and network traffic of a job, most bytes first.

    rdma: number of RDMA objects by kind, and registered memory in B; empty: none, or unknown.
    note: reason for which mounts are unknown. is_from_store: the values are sums of rates over
    `nodes` nodes of the job.
    """

    mounts: tuple[JobMount, ...] = ()
    network: tuple[JobNetwork, ...] = ()
    rdma: dict[str, int] = {}
    note: str = ""
    is_from_store: bool = False
    nodes: int = 1


def format_mounts(found: JobMounts) -> list[str]:
    """Return one text per busiest mount, or one text with the reason for which there are none."""
    texts = [_describe(one) for one in found.mounts[:_MOST]]
    if len(found.mounts) > _MOST:
        more = f"and {len(found.mounts) - _MOST} more"
        texts.append(more if found.is_from_store else f"{more}: ccagent jobio show")
    if texts or (found.is_from_store and found.network):
        return texts
    return [found.note or "none was used since the kernel counts"]


def format_network(found: JobMounts) -> list[str]:
    """Return one text per network protocol of the job, and one for its use of RDMA."""
    texts = [
        clean(f"{one.name}: {short_size(one.received)}B received, {short_size(one.sent)}B sent")
        for one in found.network
    ]
    if found.rdma:
        texts.append(
            f"RDMA: {plural(found.rdma.get('queue_pairs', 0), 'queue pair')},"
            f" {plural(found.rdma.get('completion_queues', 0), 'completion queue')},"
            f" {plural(found.rdma.get('memory_regions', 0), 'memory region')}"
            f" of {short_size(found.rdma.get('memory', 0))}B"
        )
    return texts


def _describe(one: JobMount) -> str:
    latency = one.latency
    return clean(
        f"{one.point} {one.type}: {short_size(one.read)}B read in {plural(one.reads, 'call')},"
        f" {short_size(one.written)}B written in {plural(one.writes, 'call')},"
        f" {plural(one.metadata, 'metadata operation')}"
        + (f", {number(latency)} ms a call" if latency is not None else "")
    )


MOUNT_METRICS = {
    "job_fs_read": "read", "job_fs_write": "written", "job_fs_reads": "reads",
    "job_fs_writes": "writes", "job_fs_metadata": "metadata",
    "job_fs_read_time": "reads", "job_fs_write_time": "writes",
}  # fmt: skip
"""Rates of a mount, and the fields of the sums; times of calls, and the number of the calls."""

TIMES = frozenset({"job_fs_read_time", "job_fs_write_time"})
"""Metrics with the mean time of a call in us. They come after the number of calls."""

NETWORK_METRICS = {
    "job_net_received": "received", "job_net_sent": "sent",
    "job_net_ports_received": "received", "job_net_ports_sent": "sent",
}  # fmt: skip

MOST_PARTS = 5000
"""Maximum of parts. Parts of a job's first nodes are used."""

LATE = 600
"""Seconds after a job's end until its last reading: the maximum interval of `jobio`."""

PORTS = "ports"
"""Protocol name of the traffic through the ports of an exclusive node."""


def part_metrics(name: str) -> dict[str, str]:
    """Return the metrics of a part with the fields of their sums; {} for other parts.

    The name of a part starts with its first tag.
    """
    if name.startswith(MOUNT[0]):
        return MOUNT_METRICS
    return NETWORK_METRICS if name.startswith(NETWORK[0]) else {}


def amount_of(metric: str, values: Sequence[float | None], step: int) -> float:
    """Return the amount for rates, and the mean of the times of calls.

    Each rate counts for the usual time between two values.
    """
    known = {
        place: value
        for place, value in enumerate(values)
        if value is not None and 0 <= value < LARGEST_VALUE
    }
    if metric in TIMES:
        return mean_of_known(known.values()) or 0.0
    return sum(known.values()) * step * max(1, usual_gap([*known]))


class JobPartSums:
    """Sums of the amounts of a job's parts over its nodes."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, float]] = {}
        """Amounts by name and field."""
        self._nodes: set[str] = set()
        self._calls: dict[tuple[str, str, str], float] = {}
        self._busy: dict[str, float] = {}

    def add(self, node: str, name: str, metric: str, amount: float) -> None:
        """Add the amount of a metric of a part on a node, as `amount_of` returns it."""
        self._nodes.add(node)
        field = part_metrics(name)[metric]
        if metric in TIMES:
            calls = self._calls.get((node, name, field), 0.0)
            self._busy[name] = self._busy.get(name, 0.0) + calls * amount / 1e6
            return
        self._calls[node, name, field] = amount
        fields = self._found.setdefault(name, {})
        fields[field] = fields.get(field, 0.0) + amount

    def finish(self) -> JobMounts | None:
        """Return the sums, the largest first; None without amounts."""
        if not self._found:
            return None
        mounts: list[JobMount] = []
        network: list[JobNetwork] = []
        for name, amounts in self._found.items():
            whole = {field: round(amount) for field, amount in amounts.items()}
            if (tags := read_part(name, MOUNT)) is not None:
                mounts.append(JobMount(
                    point=tags.get("mountpoint", ""), type=tags.get("fstype", ""),
                    source=tags.get("source", ""), busy=self._busy.get(name), **whole,
                ))  # fmt: skip
            elif (tags := read_part(name, NETWORK)) is not None:
                network.append(JobNetwork(
                    protocol=PORTS if tags.get("layer") == "port" else tags.get("proto", ""),
                    is_loopback=tags.get("loopback") == "yes", **whole,
                ))  # fmt: skip
        mounts.sort(key=lambda one: (-one.read - one.written, -one.metadata, one.point))
        network.sort(key=lambda one: (-one.received - one.sent, one.protocol, one.is_loopback))
        return JobMounts(
            mounts=tuple(mounts), network=tuple(network), is_from_store=True,
            nodes=len(self._nodes),
        )  # fmt: skip
