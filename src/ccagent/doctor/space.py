"""Room for the outbox on disk, and whether this user may write it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ccagent.doctor.finding import Finding
from ccagent.doctor.mounts import mounted_at, read_mounts
from ccagent.errors import CcagentError, NotHereError
from ccagent.queue.files import file_of
from ccagent.registry import transport_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.doctor.demands import Site
    from ccagent.node import Node

AREA = "outbox"
SUBJECT = "outbox"

_FEWEST_INODES = 100
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_SHARED = frozenset({"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs"})
"""Source: sqlite.org/wal.html: all processes that use a database must be on one host."""

_LOSS = "all: what can't be sent waits in memory alone, and is lost with the process"


class Room(NamedTuple):
    """Where an outbox lies. free: bytes; inodes: free ones, None where there is no such limit."""

    type: str
    free: int
    inodes: int | None
    is_writable: bool
    foreign: tuple[str, ...] = ()
    """Files of outboxes that this user may not write."""


def check_space(site: Site) -> Iterator[Finding]:
    """Hold the room that there is against what the outboxes may take."""
    outbox = site.configuration.outbox
    sinks = [
        name
        for name, settings in site.configuration.sinks.items()
        if transport_class(settings.url).is_network
    ]
    if outbox.memory or not outbox.directory:
        yield judge_memory(len(sinks))
        return
    wanted = outbox.max_bytes * max(1, len(sinks))
    yield judge_space(outbox.directory, _room(site.node, outbox.directory, sinks), wanted)


def judge_memory(sinks: int) -> Finding:
    """Judge an outbox in memory, by the number of sinks on a network."""
    if not sinks:
        return Finding(
            area=AREA, subject=SUBJECT, state="good", found="none is needed: no sink on a network"
        )
    return Finding(
        area=AREA,
        subject=SUBJECT,
        state="missing",
        found="in memory, as configured",
        costs=[_LOSS],
        advice='set outbox.directory = "/var/lib/ccagent", unless the node has no disk',
    )


def judge_space(directory: str, room: Room | CcagentError, wanted: int) -> Finding:
    """Judge the file system of the directory; wanted: bytes that all outboxes may take."""
    if isinstance(room, CcagentError):
        return _problem(
            str(room),
            f"make it for ccagent's user alone: install -d -o ccagent -m 0700 {directory}",
        )
    if not room.is_writable:
        return _problem(
            f"{directory} can't be written by this user",
            "give it, and what is in it, to the user that ccagent runs as: "
            f"chown ccagent {directory} {directory}/*.outbox*",
        )
    if room.foreign:
        return _problem(
            f"{', '.join(room.foreign)} can't be written by this user",
            "somebody else has run ccagent with this configuration; give them to its user: "
            f"chown ccagent {directory}/*.outbox*",
        )
    found = f"{directory}: {size(room.free)} free on {room.type}"
    if room.free < wanted:
        return _problem(
            f"{found}, where outboxes may take {size(wanted)}",
            "make room, set a smaller outbox.max-bytes, or have it on another file system",
        )
    if room.inodes is not None and room.inodes < _FEWEST_INODES:
        return _problem(f"{found}, but {room.inodes} inodes", "remove files from that file system")
    if room.type in _SHARED:
        return _problem(
            f"{found}, on which several hosts could write: SQLite's log (WAL) needs one host's",
            "have it on a disk of this machine, or set outbox.memory = true",
        )
    if room.type in _IN_MEMORY:
        found += ", which is memory: it outlives the process, but not the machine"
    return Finding(
        area=AREA,
        subject=SUBJECT,
        state="good",
        found=f"{found}, outboxes may take {size(wanted)}",
    )


def size(number: int) -> str:
    """Give a number of bytes as people read it: `1.5 GiB`."""
    value, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"


def _problem(found: str, advice: str) -> Finding:
    return Finding(
        area=AREA, subject=SUBJECT, state="problem", found=found, costs=[_LOSS], advice=advice
    )


def _room(node: Node, directory: str, sinks: Sequence[str]) -> Room | CcagentError:
    """Look at a directory, or where it would be made."""
    path = directory
    try:
        while True:
            try:
                node.owner(path.lstrip("/"))
                break
            except NotHereError:
                if path == "/":
                    raise
                path = os.path.dirname(path.rstrip("/"))
        if path != directory and not node.is_writable(path.lstrip("/")):
            return NotHereError(f"{directory}: there is none, and this user can't make it")
        answer = node.space(path.lstrip("/"))
        mount = mounted_at(read_mounts(node), path)
    except CcagentError as error:
        return error
    files = [os.path.join(directory, file_of(sink)) for sink in sinks]
    read_only = bool(answer.f_flag & os.ST_RDONLY)
    return Room(
        type=mount.type if mount is not None else "?",
        free=answer.f_bavail * (answer.f_frsize or answer.f_bsize),
        inodes=answer.f_favail if answer.f_files else None,
        is_writable=not read_only and node.is_writable(path.lstrip("/")),
        foreign=tuple(file for file in files if _is_foreign(node, file.lstrip("/"))),
    )


def _is_foreign(node: Node, file: str) -> bool:
    try:
        node.owner(file)
    except CcagentError:
        return False
    return not node.is_writable(file)
