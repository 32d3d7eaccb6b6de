"""The two object files of `build`, and their version."""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple

from ccagent.errors import NotHereError
from ccagent.machine.bpf import ended_records, task_records

TASKS_ALONE = "-tasks"
"""Suffix of the version where the kernel accepted only the first of them."""

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))


class Objects(NamedTuple):
    """The two object files."""

    tasks: bytes
    ended: bytes

    @property
    def version(self) -> str:
        """Return the version of layouts and contents."""
        digest = hashlib.sha256(self.tasks + self.ended).hexdigest()
        return f"{task_records.LAYOUT}.{ended_records.LAYOUT}-{digest[:16]}"


def objects(directory: str = _DIRECTORY) -> Objects:
    """Read the object files. Raises NotHereError if they were not built."""
    contents: list[bytes] = []
    for name in ("tasks.bpf.o", "ended.bpf.o"):
        try:
            with open(os.path.join(directory, name), "rb") as file:
                contents.append(file.read())
        except OSError as error:
            raise NotHereError(f"{directory}/{name}: {error.strerror}") from error
    return Objects(*contents)
