"""Mounts and network traffic of a job. For jobs on this node they are the kernel's counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.agents.jobio.totals import read_totals
from ccagent.agents.jobio.usage import (
    bytes_read,
    bytes_written,
    metadata_operations,
    read_calls,
    write_calls,
)
from ccagent.errors import CcagentError
from ccagent.machine.bpf import pins
from ccagent.views.job.amounts import plural
from ccagent.views.terminal import clean
from ccagent.views.top.mounts import explain_mounts
from ccagent.views.units import short_size

if TYPE_CHECKING:
    from ccagent.machine.node import Node

_MOST = 5


class JobMount(msgspec.Struct, frozen=True, kw_only=True):
    """I/O of a job on a mount. read, written: B. metadata: operations such as open."""

    point: str
    type: str
    source: str
    read: int
    written: int
    reads: int
    writes: int
    metadata: int


class JobNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """Payload of a job on the network in B. protocol: `tcp`, `udp` or `ports`.

    ports: all bytes through the network ports of exclusive nodes.
    """

    protocol: str
    is_loopback: bool
    received: int
    sent: int

    @property
    def name(self) -> str:
        """Return the name for people."""
        if self.protocol == "ports":
            return "ports of its nodes (InfiniBand and others)"
        return f"{self.protocol.upper()}{' within a node' if self.is_loopback else ''}"


class JobMounts(msgspec.Struct, frozen=True, kw_only=True):
    """The mounts and network traffic of a job, most bytes first.

    note: reason for which they are unknown. is_from_store: the values are sums of rates over
    `nodes` nodes of the job.
    """

    mounts: tuple[JobMount, ...] = ()
    network: tuple[JobNetwork, ...] = ()
    note: str = ""
    is_from_store: bool = False
    nodes: int = 1


def read_mounts(node: Node, job: int, directory: str = pins.DIRECTORY) -> JobMounts:
    """Return a job's I/O by mount and network, since the kernel programs count it."""
    try:
        uses, traffic, _ = read_totals(node, directory, job)
    except CcagentError as error:
        return JobMounts(note=explain_mounts(error))
    mounts = (
        JobMount(
            point=use.mount.point,
            type=use.mount.type,
            source=use.mount.source,
            read=bytes_read(use.total),
            written=bytes_written(use.total),
            reads=read_calls(use.total),
            writes=write_calls(use.total),
            metadata=metadata_operations(use.total),
        )
        for use in uses
    )
    network = (
        JobNetwork(
            protocol=use.protocol,
            is_loopback=use.is_loopback,
            received=use.total.received_bytes,
            sent=use.total.sent_bytes,
        )
        for use in traffic
    )
    return JobMounts(mounts=tuple(mounts), network=tuple(network))


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
    """Return one text per network protocol of the job."""
    return [
        clean(f"{one.name}: {short_size(one.received)}B received, {short_size(one.sent)}B sent")
        for one in found.network
    ]


def _describe(one: JobMount) -> str:
    return clean(
        f"{one.point} {one.type}: {short_size(one.read)}B read in {plural(one.reads, 'call')},"
        f" {short_size(one.written)}B written in {plural(one.writes, 'call')},"
        f" {plural(one.metadata, 'metadata operation')}"
    )
