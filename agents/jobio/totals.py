"""Totals of the counters of all jobs, for `ccagent jobio show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.agents.jobio.mounts import MountNames
from ccagent.agents.jobio.usage import (
    MountUse,
    NetworkUse,
    bytes_read,
    bytes_written,
    merge_mounts,
    metadata_operations,
    read_calls,
    read_counters,
    write_calls,
)
from ccagent.machine.bpf.io_records import count_lost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node

_HEADER: tuple[str, ...] = (
    "JOB", "MOUNT", "TYPE", "READ B", "WRITTEN B", "READS", "WRITES", "METADATA", "SOURCE",
)  # fmt: skip
_COLUMNS = (bytes_read, bytes_written, read_calls, write_calls, metadata_operations)
_NETWORK_HEADER = ("JOB", "NETWORK", "", "RECEIVED B", "SENT B", "RECEIVES", "SENDS")


def read_totals(
    node: Node, directory: str, job: int | None, names: MountNames | None = None
) -> tuple[list[MountUse], list[NetworkUse], int]:
    """Return the totals of all jobs or one, most bytes first, and the number of lost calls.

    names: of an earlier reading, with the mounts of jobs that have ended. Raise the errors of
    JobIoUsage.read.
    """
    io, network = read_counters(node, directory)
    if names is None:
        names = MountNames()
    names.read(node)
    mounts = merge_mounts(
        MountUse(key.job, names.name(node, key, counts.magic), counts, counts)
        for key, counts in io.entries.items()
        if job in {None, key.job}
    )
    mounts.sort(key=lambda use: -bytes_read(use.total) - bytes_written(use.total))
    traffic = [
        NetworkUse(*key, counts, counts)
        for key, counts in network.entries.items()
        if job in {None, key.job}
    ]
    return mounts, traffic, count_lost(io, network)


def totals_text(mounts: Iterable[MountUse], network: Iterable[NetworkUse]) -> str:
    """Return the tables of mounts and network for a terminal."""
    rows: list[tuple[str, ...]] = [_HEADER]
    for use in mounts:
        name = (str(use.job or "-"), use.mount.point, use.mount.type)
        numbers = (str(column(use.total)) for column in _COLUMNS)
        rows.append((*name, *numbers, use.mount.source))
    text = _align(rows)
    rows = [_NETWORK_HEADER]
    for traffic_use in network:
        kind = f"{traffic_use.protocol}{' loopback' if traffic_use.is_loopback else ''}"
        traffic = traffic_use.total
        moved = (traffic.received_bytes, traffic.sent_bytes, traffic.receives, traffic.sends)
        rows.append((str(traffic_use.job or "-"), kind, "", *map(str, moved)))
    return text if len(rows) == 1 else f"{text}\n{_align(rows)}"


def totals_document(
    mounts: Iterable[MountUse], network: Iterable[NetworkUse], lost: int
) -> dict[str, Any]:
    """Return mounts and network as an object for JSON, with all counters."""
    return {
        "mounts": [
            {"job": use.job, **use.mount._asdict(), **use.total._asdict()} for use in mounts
        ],
        "network": [
            {"job": job, "protocol": protocol, "loopback": is_loopback, **total._asdict()}
            for job, protocol, is_loopback, _, total in network
        ],
        "lost": lost,
    }


def _align(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if 3 <= number < 8 else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "".join(f"{line.rstrip()}\n" for line in lines)
