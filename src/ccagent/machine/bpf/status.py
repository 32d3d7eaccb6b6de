"""Versions of the compiled programs, and the status of the pinned ones."""

from __future__ import annotations

import grp
import hashlib
import os
import stat
from typing import NamedTuple

import msgspec

from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.bpf import io_records, pins, process_records
from ccagent.machine.node import Node

TASKS_ALONE = "-tasks"
"""Suffix of the version if the kernel only accepted `tasks`."""

TIMED = "-time"
"""Suffix of the version of programs for I/O that measure times."""

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))


class Objects(NamedTuple):
    """The object files, for processes and for the I/O of jobs."""

    tasks: bytes
    ended: bytes
    io: bytes = b""

    @property
    def version(self) -> str:
        """Return the version of the programs for processes, from layouts and contents."""
        digest = hashlib.sha256(self.tasks + self.ended).hexdigest()
        return f"{process_records.TASKS_LAYOUT}.{process_records.ENDED_LAYOUT}-{digest[:16]}"

    @property
    def io_version(self) -> str:
        """Return the version of the programs for I/O, from layout and content."""
        return f"{io_records.LAYOUT}-{hashlib.sha256(self.io).hexdigest()[:16]}"


def objects(directory: str = _DIRECTORY) -> Objects:
    """Read the object files. Raise NotHereError if they were not built."""
    contents: list[bytes] = []
    for name in ("tasks.bpf.o", "ended.bpf.o", "io.bpf.o"):
        try:
            with open(os.path.join(directory, name), "rb") as file:
                contents.append(file.read())
        except OSError as error:
            raise NotHereError(f"{directory}/{name}: {error.strerror}") from error
    return Objects(*contents)


class KernelProgramStatus(msgspec.Struct):
    """Status of the pinned programs. processes, ended_entries, io_entries: None if not readable.

    state: `loaded`, `other version`, `incomplete` or `not loaded`. io: state of the optional
    programs for I/O; "" if they are not loaded. io_lost: calls lost because the kernel's tables
    were full. io_missed: maximum number of calls for which the kernel skipped the programs.
    not_counted: values whose functions this kernel lacks.
    """

    directory: str
    state: str
    version: str = ""
    mode: str = ""
    group: str = ""
    processes: int | None = None
    ended_entries: int | None = None
    ended_processes: int | None = None
    freed_unseen: int | None = None
    refused: int | None = None
    io: str = ""
    io_version: str = ""
    io_entries: int | None = None
    io_lost: int | None = None
    io_missed: int | None = None
    not_counted: str = ""
    problems: list[str] = []


def read_status(directory: str = pins.DIRECTORY) -> KernelProgramStatus:
    """Return the status of the pinned programs. Each of them is read once."""
    found = KernelProgramStatus(directory, "not loaded", version=pins.read_version(directory))
    try:
        of_tasks = os.stat(os.path.join(directory, pins.TASKS))
    except OSError:
        if found.version or any(os.path.lexists(path) for path in pins.paths(directory)):
            found.state = "incomplete"
        return found
    found.mode = f"{stat.S_IMODE(of_tasks.st_mode):04o}"
    try:
        found.group = grp.getgrgid(of_tasks.st_gid).gr_name
    except KeyError:
        found.group = str(of_tasks.st_gid)
    if not found.version:
        found.state = "incomplete"
    elif found.version.removesuffix(TASKS_ALONE) == objects().version:
        found.state = "loaded"
    else:
        found.state = "other version"
    _count(found, directory)
    if os.path.lexists(os.path.join(directory, pins.IO_PROGRAMS)):
        _describe_io(found, directory)
    return found


def _count(found: KernelProgramStatus, directory: str) -> None:
    node, below = Node(hostname="localhost", cluster="local"), directory.lstrip("/")
    try:
        content = node.read(f"{below}/{pins.TASKS}", process_records.LARGEST_READING)
        found.processes = sum(1 for _ in process_records.parse_tasks(content))
    except CcagentError as error:
        found.problems.append(str(error))
    if not os.path.lexists(os.path.join(directory, pins.ENDED)):
        found.problems.append("ended processes are not counted: this kernel refused the programs")
        return
    try:
        ended = process_records.parse_raw(
            node.read(f"{below}/{pins.ENDED}", process_records.LARGEST_READING)
        )
        found.ended_entries = sum(1 for _ in ended.entries)
        found.ended_processes = ended.total.processes
        found.freed_unseen = ended.unseen
        found.refused = ended.total.refused
    except CcagentError as error:
        found.problems.append(str(error))


def _describe_io(found: KernelProgramStatus, directory: str) -> None:
    found.io_version = pins.read_version(directory, pins.IO_VERSION)
    if not found.io_version:
        found.io = "incomplete"
    elif found.io_version.removesuffix(TIMED) == objects().io_version:
        found.io = "loaded"
    else:
        found.io = "other version"
    node, below = Node(hostname="localhost", cluster="local"), directory.lstrip("/")
    most = io_records.LARGEST_READING
    try:
        io = io_records.parse_io(node.read(f"{below}/{pins.IO}", most))
        network = io_records.parse_network(node.read(f"{below}/{pins.NETWORK}", most))
    except CcagentError as error:
        found.problems.append(str(error))
        return
    found.io_entries = len(io.entries) + len(network.entries)
    found.io_lost = io_records.count_lost(io, network)
    found.io_missed = io.missed
    missing = io_records.missing_hooks(io.header.features)
    found.not_counted = ", ".join(hook.counts for hook in missing)
