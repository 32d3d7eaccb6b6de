"""Sums of a job's I/O by mount and network, from the series of its parts in a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.stores.metrics.line_keys import MOUNT, NETWORK, read_part
from ccagent.views.job.facts import LARGEST_VALUE
from ccagent.views.job.measuring import usual_gap
from ccagent.views.job.mounts import JobMount, JobMounts, JobNetwork

if TYPE_CHECKING:
    from collections.abc import Sequence

MOUNT_METRICS = {
    "job_fs_read": "read", "job_fs_write": "written", "job_fs_reads": "reads",
    "job_fs_writes": "writes", "job_fs_metadata": "metadata",
}  # fmt: skip
"""Rates of a mount, and the fields of the sums."""

NETWORK_METRICS = {
    "job_net_received": "received", "job_net_sent": "sent",
    "job_net_ports_received": "received", "job_net_ports_sent": "sent",
}  # fmt: skip

METRICS = {MOUNT[0]: MOUNT_METRICS, NETWORK[0]: NETWORK_METRICS}
"""Fields by the first tag of a part. The name of a part starts with this tag."""

MOST_PARTS = 5000
"""Maximum of parts. Parts of a job's first nodes are used."""

LATE = 600
"""Seconds after a job's end until its last reading: the maximum interval of `jobio`."""

PORTS = "ports"
"""Protocol name of the traffic through the ports of an exclusive node."""


def part_metrics(name: str) -> dict[str, str]:
    """Return the metrics of a part with the fields of their sums; {} for other parts."""
    for tag, metrics in METRICS.items():
        if name.startswith(tag):
            return metrics
    return {}


def sum_of_rates(values: Sequence[float | None], step: int) -> float:
    """Return the amount for rates: each rate counts for the usual time between two values."""
    places = [
        number
        for number, value in enumerate(values)
        if value is not None and 0 <= value < LARGEST_VALUE
    ]
    # `places` has only indices of valid values.
    total = sum(values[place] or 0.0 for place in places)
    return total * step * max(1, usual_gap(places))


class JobPartSums:
    """Sums of the amounts of a job's parts over its nodes."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, float]] = {}
        """Amounts by name and field."""
        self._nodes: set[str] = set()

    def add(self, node: str, name: str, field: str, amount: float) -> None:
        """Add an amount of a part on a node."""
        self._nodes.add(node)
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
            mount, way = read_part(name, MOUNT), read_part(name, NETWORK)
            if mount is not None:
                mounts.append(_make_mount(mount, whole))
            elif way is not None:
                network.append(_make_network(way, whole))
        mounts.sort(key=lambda one: (-one.read - one.written, -one.metadata, one.point))
        network.sort(key=lambda one: (-one.received - one.sent, one.protocol, one.is_loopback))
        return JobMounts(
            mounts=tuple(mounts), network=tuple(network), is_from_store=True,
            nodes=len(self._nodes),
        )  # fmt: skip


def _make_mount(tags: dict[str, str], amounts: dict[str, int]) -> JobMount:
    return JobMount(
        point=tags.get("mountpoint", ""),
        type=tags.get("fstype", ""),
        source=tags.get("source", ""),
        read=amounts.get("read", 0),
        written=amounts.get("written", 0),
        reads=amounts.get("reads", 0),
        writes=amounts.get("writes", 0),
        metadata=amounts.get("metadata", 0),
    )


def _make_network(tags: dict[str, str], amounts: dict[str, int]) -> JobNetwork:
    return JobNetwork(
        protocol=PORTS if tags.get("layer") == "port" else tags.get("proto", ""),
        is_loopback=tags.get("loopback") == "yes",
        received=amounts.get("received", 0),
        sent=amounts.get("sent", 0),
    )
