"""The compiled object files, and their versions."""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple

from ccagent.errors import NotHereError
from ccagent.machine.bpf import ended_records, io_records, task_records

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
