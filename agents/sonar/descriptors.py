"""Files of processes that stay open, as many as RLIMIT_NOFILE lets us keep."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from ccagent.node import raise_for

if TYPE_CHECKING:
    from ccagent.node import Node

CLOSED = -1
"""Stands for a file that is opened at each reading, for lack of descriptors."""
UNUSED = -2
"""Stands for a file that is never read: it can tell nothing, or may not be read."""

LARGEST = 1024
"""Bytes of a file that are read: all that is used of it stands well before."""

_RESERVED = 256
_NO_LIMIT = 1_048_576


class Descriptors:
    """Opens, reads and closes files of the node; `free` counts how many more may be kept."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.free = raise_limit()

    def open(self, path: str) -> int:
        """Open a file to keep; CLOSED if there are no descriptors left. Raises as Node.read."""
        if self.free <= 0:
            return CLOSED
        descriptor = self._node.open(path)
        self.free -= 1
        return descriptor

    def read(self, descriptor: int, path: str) -> bytes:
        """Read a file from its beginning, by its descriptor if there is one."""
        if descriptor < 0:
            return self._node.read_single(path)
        try:
            return os.pread(descriptor, LARGEST, 0)
        except OSError as error:
            raise_for(path, error)

    def close(self, *descriptors: int) -> None:
        """Close those of the descriptors that are open."""
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
                self.free += 1


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one; give how many may be kept open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = _NO_LIMIT
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # what there is will do
    return max(0, soft - _RESERVED)
