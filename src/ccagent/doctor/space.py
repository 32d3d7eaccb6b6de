"""Checks of the queues' directory: free space, write permission, damaged and refused files."""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from ccagent.doctor.daemon import (
    find_service_user,
    find_unwritable,
    list_state_directories,
    read_unit,
)
from ccagent.doctor.finding import Finding, Site
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, find_mount, parse_visible_mounts
from ccagent.queue.queue import OLD_SUFFIX, SUFFIX, make_directory_name
from ccagent.queue.record_log import FILE_ERRORS, describe_error
from ccagent.queue.segment import QueueOwner, find_owner, read_segment
from ccagent.queue.segment_directory import is_segment
from ccagent.transports.base import transport_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pwd import struct_passwd

    from ccagent.machine.node import Node


_AGAIN = 0.2
_RETRY = "send its messages (`ccagent outbox retry`), or delete them (`ccagent outbox drop`)"


def check_files(node: Node, directory: str) -> Iterator[Finding]:
    """Yield a problem for each file of an outbox that is damaged or can't be used."""
    for name in node.list_names(directory.lstrip("/")):
        path = os.path.join(directory, name)
        place = node.root.rstrip("/") + path
        if name.endswith(OLD_SUFFIX):
            found = "of an earlier version: it waits for its conversion"
            yield _report_file(path, found, "its messages are not sent yet", "start ccagent")
        if not name.endswith(SUFFIX):
            continue
        if reason := _reason_against(place):
            impact = "its messages cannot be sent, and new ones are not stored in it"
            fix = "move it away while ccagent does not run; the service then creates a new one"
            yield _report_file(path, reason, impact, fix)
            continue
        owner = find_owner(unquote(name.removesuffix(SUFFIX)))
        for file in node.list_names(path.lstrip("/")):
            yield from _check_segment(os.path.join(path, file), os.path.join(place, file), owner)


def _check_segment(path: str, place: str, owner: QueueOwner) -> Iterator[Finding]:
    """Yield a problem for a damaged file of a queue, or one of another sink or machine."""
    if not is_segment(path):
        return
    try:
        content = read_segment(place, owner)
        if content.damaged:
            time.sleep(_AGAIN)  # a running daemon may be writing a message
            content = read_segment(place, owner)
    except FileNotFoundError:
        return  # a running daemon has sent its messages
    except FILE_ERRORS as error:
        reason = describe_error(error, place)
        yield _report_file(path, reason, "its messages cannot be sent", "move it away")
        return
    if content.foreign:
        yield _report_file(path, content.foreign, "its messages are not sent", _RETRY)
    elif content.damaged:
        size = content.damaged_bytes
        impact = "messages in damaged parts of it are lost"
        fix = "let the service run: it sends the undamaged messages; check the disk"
        yield _report_file(path, f"damaged: {size} bytes", impact, fix)


def _reason_against(path: str) -> str:
    """Return the reason why ccagent would refuse the directory of a queue, or ""."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return error.strerror or str(error)
    if stat.S_ISLNK(status.st_mode):
        return "a symbolic link, which ccagent does not follow"
    return "" if stat.S_ISDIR(status.st_mode) else "not a directory"


def _report_file(path: str, found: str, impact: str, fix: str) -> Finding:
    return Finding("outbox", path, "problem", found, fix, [impact])


_OUTBOX = "outbox"
"""Area and subject of the finding."""

_FEWEST_INODES = 100
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_SHARED = frozenset({"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs"})
"""File systems that several hosts may use, and whose locks may not reach the other hosts."""

_LOSS = "all: the queue is only in memory, and is lost with the process"


class Room(NamedTuple):
    """The file system of a queue. free: bytes; inodes: free inodes, None without a limit.

    foreign: files of queues that the user cannot write. user: the service's user; empty: the user
    who runs the doctor.
    """

    type: str
    free: int
    inodes: int | None
    is_writable: bool
    foreign: tuple[str, ...] = ()
    user: str = ""


def check_space(site: Site) -> Iterator[Finding]:
    """Compare the free space with the maximum size of the queues."""
    outbox = site.configuration.outbox
    sinks = [
        name
        for name, settings in site.configuration.sinks.items()
        if transport_class(settings.url).is_network
    ]
    if outbox.memory or not outbox.directory:
        yield assess_memory(len(sinks))
        return
    wanted = outbox.max_bytes * max(1, len(sinks))
    yield assess_space(outbox.directory, _find_room(site, outbox.directory, sinks), wanted)
    yield from check_files(site.node, outbox.directory)


def assess_memory(sinks: int) -> Finding:
    """Return the result for queues in memory, for this number of sinks on a network."""
    if not sinks:
        return Finding(_OUTBOX, _OUTBOX, "good", "none is needed: no sink on a network")
    fix = 'set outbox.directory = "/var/lib/ccagent", unless the node has no disk'
    return Finding(_OUTBOX, _OUTBOX, "missing", "in memory, as configured", fix, [_LOSS])


def assess_space(directory: str, room: Room | CcagentError, wanted: int) -> Finding:
    """Return whether the directory has room for the queues. wanted: their maximum size in bytes."""
    if isinstance(room, CcagentError):
        fix = f"make it for ccagent's user alone: install -d -o ccagent -m 0700 {directory}"
        return _make_problem(str(room), fix)
    who = f"user {room.user}, the user of the service," if room.user else "this user"
    chown = f"chown -R {room.user or 'ccagent'} {directory}"
    if not room.is_writable:
        fix = f"give it, and what is in it, to the user that ccagent runs as: {chown}"
        return _make_problem(f"{who} cannot write {directory}", fix)
    if room.foreign:
        fix = "another user ran ccagent with this configuration; give the files to its user: "
        return _make_problem(f"{who} cannot write {', '.join(room.foreign)}", fix + chown)
    place = f"{directory}, for user {room.user}" if room.user else directory
    found = f"{place}: {format_size(room.free)} free on {room.type}"
    if room.free < wanted:
        return _make_problem(
            f"{found}, where outboxes may take {format_size(wanted)}",
            "make room, set a smaller outbox.max-bytes, or move it to another file system",
        )
    if room.inodes is not None and room.inodes < _FEWEST_INODES:
        fix = "remove files from that file system"
        return _make_problem(f"{found}, but {room.inodes} inodes", fix)
    if room.type in _SHARED:
        return _make_problem(
            f"{found}, on which several hosts could write: the locks of the queue need one host",
            "move it to a disk of this machine, or set outbox.memory = true",
        )
    if room.type in _IN_MEMORY:
        found += ", which is memory: it outlives the process, but not the machine"
    return Finding(_OUTBOX, _OUTBOX, "good", f"{found}, outboxes may take {format_size(wanted)}")


def format_size(number: int) -> str:
    """Return a number of bytes with a unit: `1.5 GiB`."""
    value, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"


def _make_problem(found: str, fix: str) -> Finding:
    return Finding(_OUTBOX, _OUTBOX, "problem", found, fix, [_LOSS])


def _find_room(site: Site, directory: str, sinks: Sequence[str]) -> Room | CcagentError:
    """Return the space of a directory, or of the place where it would be created."""
    node = site.node
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
        user = find_service_user(site, path)
        files = [os.path.join(directory, make_directory_name(sink)) for sink in sinks]
        existing = [file for file in files if _exists(node, file)]
        refused = _find_refused(node, user, [path, *existing])
        is_made_by_systemd = path != directory and directory in list_state_directories(
            read_unit(node)
        )
        if path != directory and path in refused and not is_made_by_systemd:
            who = f"user {user.pw_name}, the user of the service," if user else "this user"
            return NotHereError(f"{directory}: it does not exist, and {who} cannot create it")
        answer = node.space(path.lstrip("/"))
        mount = find_mount(read_parsed(node, MOUNTINFO, parse_visible_mounts), path)
    except CcagentError as error:
        return error
    read_only = bool(answer.f_flag & os.ST_RDONLY)
    return Room(
        type=mount.type if mount is not None else "?",
        free=answer.f_bavail * (answer.f_frsize or answer.f_bsize),
        inodes=answer.f_favail if answer.f_files else None,
        is_writable=not read_only and (is_made_by_systemd or path not in refused),
        foreign=tuple(file for file in existing if file in refused),
        user=user.pw_name if user else "",
    )


def _find_refused(node: Node, user: struct_passwd | None, paths: list[str]) -> list[str]:
    """Return the paths that the service's user (default: this user) cannot write."""
    if user is not None:
        return find_unwritable(user, paths)
    return [path for path in paths if not node.is_writable(path.lstrip("/"))]


def _exists(node: Node, file: str) -> bool:
    try:
        node.owner(file.lstrip("/"))
    except CcagentError:
        return False
    return True
