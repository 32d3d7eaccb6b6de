"""The tables of a job's file systems and network, and a text on its measured energy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.views.web.amounts import format_quantity
from ccagent.views.web.words import shown_text

if TYPE_CHECKING:
    from ccagent.views.job.mounts import JobMount, JobMounts
    from ccagent.views.web.data.job_parts import JobEnergyUse

_MOST = 20
_PARTS = {"cpu": "processors", "memory": "memory", "gpu": "GPUs", "other": "other"}


class MountRow(msgspec.Struct, frozen=True):
    """A row of the table of file systems."""

    point: str
    type: str
    source: str
    read: str
    written: str
    reads: str
    writes: str
    metadata: str


class NetworkRow(msgspec.Struct, frozen=True):
    """A row of the table of network traffic."""

    name: str
    received: str
    sent: str


class ShownParts(msgspec.Struct, frozen=True):
    """The tables of a page. more: number of omitted mounts. nodes: text on the known nodes."""

    mounts: list[MountRow] = []
    more: int = 0
    network: list[NetworkRow] = []
    nodes: str = ""


def show_parts(found: JobMounts | None, nodes: int) -> ShownParts:
    """Return the tables, empty without data. nodes: number of nodes of the job."""
    if found is None:
        return ShownParts()
    return ShownParts(
        [_row(one) for one in found.mounts[:_MOST]],
        max(0, len(found.mounts) - _MOST),
        [
            NetworkRow(
                shown_text(one.name), format_quantity(one.received, "B"),
                format_quantity(one.sent, "B"),
            )
            for one in found.network[:_MOST]
        ],
        "all nodes" if found.nodes == nodes else f"{found.nodes} of {nodes} nodes",
    )  # fmt: skip


def _row(one: JobMount) -> MountRow:
    return MountRow(
        shown_text(one.point) or "unknown",
        shown_text(one.type),
        shown_text(one.source),
        format_quantity(one.read, "B"),
        format_quantity(one.written, "B"),
        format_quantity(one.reads, ""),
        format_quantity(one.writes, ""),
        format_quantity(one.metadata, ""),
    )


def describe_energy(found: JobEnergyUse, nodes: int) -> str:
    """Return a text with a job's measured energy by part. nodes: number of nodes of the job."""
    parts: dict[str, float] = {}
    for (part, _), joules in found.joules.items():
        parts[part] = parts.get(part, 0.0) + joules
    known = [part for part in _PARTS if part in parts]
    others = sorted(parts.keys() - _PARTS.keys())[:4]
    texts = [
        f"{_PARTS.get(part) or shown_text(part)} {_amount(parts[part])}" for part in known + others
    ]
    text = f"{_amount(sum(parts.values()))}: {', '.join(texts)}"
    idle = sum(joules for (_, share), joules in found.joules.items() if share == "idle")
    if idle:
        text += f"; {_amount(idle)} of it idle"
    return text if found.nodes == nodes else f"{text}; of {found.nodes} of {nodes} nodes"


def _amount(joules: float) -> str:
    return format_quantity(joules / 3600, "Wh")
