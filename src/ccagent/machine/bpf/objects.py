"""The compiled object files, their versions, and the jobs that they are given when loaded."""

from __future__ import annotations

import hashlib
import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.bpf import ended_records, io_records, task_records
from ccagent.machine.cgroup.jobs import V2, job_directories
from ccagent.machine.node import Node

if TYPE_CHECKING:
    from ccagent.machine.bpf.libbpf import Object

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
        return f"{task_records.LAYOUT}.{ended_records.LAYOUT}-{digest[:16]}"

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


def put_job_numbers(programs: Object) -> None:
    """Put the numbers of running jobs into the map `numbers` of job.bpf.h, before attaching.

    The programs themselves find those of later jobs.
    """
    node = Node(hostname="localhost", cluster="local")
    with suppress(CcagentError):
        for each in job_directories(node, ()):
            if each.controller == V2 and each.job <= 0xFFFFFFFF:
                group, job = struct.pack("=Q", node.inode(each.path)), struct.pack("=I", each.job)
                programs.put("numbers", group, job)
