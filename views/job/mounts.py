"""Mounts of a job that runs on this node, as the kernel has counted its I/O since the start."""

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
    """What a job has done on a mount. read, written: B. metadata: operations such as open."""

    point: str
    type: str
    source: str
    read: int
    written: int
    reads: int
    writes: int
    metadata: int


class JobMounts(msgspec.Struct, frozen=True, kw_only=True):
    """The mounts of a job on a node, most bytes first. note: why they are not known."""

    mounts: tuple[JobMount, ...] = ()
    note: str = ""


def read_mounts(node: Node, job: int, directory: str = pins.DIRECTORY) -> JobMounts:
    """Return what a job has done by mount since the programs have seen it."""
    try:
        uses, _, _ = read_totals(node, directory, job)
    except CcagentError as error:
        return JobMounts(note=explain_mounts(error))
    return JobMounts(mounts=tuple(
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
    ))  # fmt: skip


def format_mounts(found: JobMounts) -> list[str]:
    """Return a text for each of the mounts that the job used most, or one that says why none."""
    texts = [_describe(one) for one in found.mounts[:_MOST]]
    if len(found.mounts) > _MOST:
        texts.append(f"and {len(found.mounts) - _MOST} more: ccagent jobio show")
    return texts or [found.note or "none was used since the kernel counts"]


def _describe(one: JobMount) -> str:
    return clean(
        f"{one.point} {one.type}: {short_size(one.read)}B read in {plural(one.reads, 'call')},"
        f" {short_size(one.written)}B written in {plural(one.writes, 'call')},"
        f" {plural(one.metadata, 'metadata operation')}"
    )
