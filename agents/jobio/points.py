"""Points of jobs: I/O by mount, and network traffic through sockets and ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.jobio.usage import (
    METADATA,
    bytes_read,
    bytes_written,
    is_idle,
    metadata_operations,
    read_calls,
    write_calls,
)
from ccagent.agents.metrics.readers.infiniband import InfinibandReader
from ccagent.errors import CcagentError
from ccagent.machine.bpf.io_records import HAS_TIME
from ccagent.machine.cgroup.jobs import job_directories, known_directories
from ccagent.machine.cpus import read_online
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import parse_cpu_list
from ccagent.records.points import Point, Tags

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ccagent.agents.jobio.usage import JobIoUse, MountUse, NetworkUse
    from ccagent.machine.bpf.io_records import IoCounts
    from ccagent.machine.node import Node

_ALWAYS: dict[str, Callable[[IoCounts], int]] = {
    "job_fs_read": bytes_read,
    "job_fs_write": bytes_written,
    "job_fs_reads": read_calls,
    "job_fs_writes": write_calls,
    "job_fs_opens": lambda counts: counts.opens,
    "job_fs_metadata": metadata_operations,
}
"""Metrics of every job on each of its mounts."""

_IF_ANY = {
    "job_fs_read_async": "async_read_bytes",
    "job_fs_write_async": "async_write_bytes",
    "job_fs_read_splice": "splice_read_bytes",
    "job_fs_write_splice": "splice_write_bytes",
    "job_fs_read_errors": "read_errors",
    "job_fs_write_errors": "write_errors",
    "job_fs_fsyncs": "fsyncs",
    "job_fs_faults": "major_faults",
}
"""Metrics with their fields, sent only if the counter is not 0."""

_OPERATIONS = {f"job_fs_{field}": field for field in METADATA if field != "opens"}
_NAMES = {"ib_xmit": "job_net_ports_sent", "ib_recv": "job_net_ports_received"}


class _Maker(NamedTuple):
    """Common values of a reading's points. seconds: since the previous reading."""

    seconds: float
    time: float
    has_totals: bool

    def make(self, name: str, tags: Tags, delta: int, total: int) -> Iterator[Point]:
        """Yield the rate, and with `has_totals` the counter."""
        if self.seconds > 0:
            yield Point(name, tags, delta / self.seconds, self.time)
        if self.has_totals:
            yield Point(f"{name}_total", tags, total, self.time)


def usage_points(
    node: Node,
    use: JobIoUse,
    living: Collection[int],
    time: float,
    *,
    operations: bool,
    totals: bool,
    outside: bool,
) -> Iterator[Point]:
    """Yield the points of jobs that are running or had I/O.

    living: ids of the jobs that have control groups. operations, totals, outside: the settings.
    """

    def is_wanted(each: MountUse | NetworkUse) -> bool:
        return each.job in living or not is_idle(each.delta) if each.job else outside

    base = {"cluster": node.cluster, "hostname": node.hostname, "type": "node", "stype": "job"}
    maker = _Maker(use.seconds, time, totals)
    fields = _IF_ANY | (_OPERATIONS if operations else {})
    for mount in use.mounts:
        if is_wanted(mount):
            own = {"mountpoint": mount.mount.point, "fstype": mount.mount.type}
            if mount.mount.source:  # summed up or unknown file systems have none
                own["source"] = mount.mount.source
            tags = Tags(base | {"stype-id": str(mount.job)} | own)
            yield from _mount_points(maker, tags, mount, fields)
            if use.features & HAS_TIME:
                yield from _latencies(tags, mount.delta, time)
    for traffic in use.network:
        if is_wanted(traffic):
            kind = {
                "layer": "socket",
                "loopback": "yes" if traffic.is_loopback else "no",
                "proto": traffic.protocol,
            }
            tags = Tags(base | {"stype-id": str(traffic.job)} | kind)
            delta, total = traffic.delta, traffic.total
            yield from maker.make("job_net_sent", tags, delta.sent_bytes, total.sent_bytes)
            received = delta.received_bytes, total.received_bytes
            yield from maker.make("job_net_received", tags, *received)


def _mount_points(
    maker: _Maker, tags: Tags, use: MountUse, fields: dict[str, str]
) -> Iterator[Point]:
    delta, total = use.delta, use.total
    for name, value in _ALWAYS.items():
        yield from maker.make(name, tags, value(delta), value(total))
    for name, field in fields.items():
        if getattr(total, field):
            yield from maker.make(name, tags, getattr(delta, field), getattr(total, field))


def _latencies(tags: Tags, delta: IoCounts, time: float) -> Iterator[Point]:
    """Yield the mean times of read and write calls in us, if there were any."""
    if delta.reads:
        yield Point("job_fs_read_time", tags, delta.read_ns / delta.reads / 1000, time)
    if delta.writes:
        yield Point("job_fs_write_time", tags, delta.write_ns / delta.writes / 1000, time)


class ExclusivePorts:
    """Rates of InfiniBand, RoCE and Omni-Path ports between readings with one exclusive job.

    Kernel programs do not see data that goes from user space to the card. The ports count these
    data, but for the whole node.
    """

    def __init__(self) -> None:
        self._reader = InfinibandReader()
        self._before: tuple[int, float, dict[str, int]] | None = None

    def points(self, node: Node, living: Collection[int]) -> Iterator[Point]:
        """Yield the points of the node's exclusive job, if it has one."""
        job = exclusive_job(node, living)
        before, self._before = self._before, None
        if not job:
            return
        try:
            counts = {count.metric: int(count.value) for count in self._reader.read(node)}
        except CcagentError:
            return
        now = node.clock.monotonic()
        self._before = (job, now, counts)
        if before is None or before[0] != job or now <= before[1]:
            return
        tags = Tags({
            "cluster": node.cluster, "hostname": node.hostname, "type": "node",
            "stype": "job", "stype-id": str(job), "layer": "port",
        })  # fmt: skip
        for metric, name in _NAMES.items():
            if metric in counts and counts[metric] >= before[2].get(metric, counts[metric] + 1):
                rate = (counts[metric] - before[2][metric]) / (now - before[1])
                yield Point(name, tags, rate, node.clock.time())


def living_jobs(node: Node) -> set[int]:
    """Return the ids of the jobs that have control groups on this node."""
    return {each.job for each in known_directories(node, ("freezer", "cpuacct", "memory"))}


def exclusive_job(node: Node, living: Collection[int]) -> int:
    """Return the only job of the node if it may use all hwthreads, else 0."""
    if len(living) != 1:
        return 0
    (job,) = living
    try:
        online = set(read_online(node))
        for directory in job_directories(node, ("cpuset",)):
            if directory.job == job:
                own = set(read_parsed(node, f"{directory.path}/cpuset.cpus", parse_cpu_list))
                return job if own >= online else 0
    except CcagentError:
        pass
    return 0
