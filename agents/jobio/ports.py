"""Bytes of the node's InfiniBand, RoCE and Omni-Path ports, for a job with an exclusive node.

Kernel programs do not see data that goes from user space to the card. The ports count these data,
but for the whole node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.metrics.readers.infiniband import InfinibandReader
from ccagent.errors import CcagentError
from ccagent.machine.cgroup.jobs import job_directories
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.cpulist import parse_cpu_list
from ccagent.records.line_protocol.encoding import Tags
from ccagent.records.points import Point

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ccagent.machine.node import Node

_NAMES = {"ib_xmit": "job_net_ports_sent", "ib_recv": "job_net_ports_received"}


class ExclusivePorts:
    """Rates of all ports between two readings with the same exclusive job."""

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
            counts = {each.metric: int(each.value) for each in self._reader.read(node)}
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
    try:
        return {each.job for each in job_directories(node, ("freezer", "cpuacct", "memory"))}
    except CcagentError:
        return set()


def exclusive_job(node: Node, living: Collection[int]) -> int:
    """Return the only job of the node if it may use all hwthreads, else 0."""
    if len(living) != 1:
        return 0
    (job,) = living
    try:
        online = set(read_parsed(node, "sys/devices/system/cpu/online", parse_cpu_list))
        for each in job_directories(node, ("cpuset",)):
            if each.job == job:
                own = set(read_parsed(node, f"{each.path}/cpuset.cpus", parse_cpu_list))
                return job if own >= online else 0
    except CcagentError:
        pass
    return 0
