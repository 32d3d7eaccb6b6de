"""Files of processes that are kept open, within RLIMIT_NOFILE."""

from __future__ import annotations

import errno
import os
import resource
from typing import TYPE_CHECKING

from ccagent.errors import ShortageError, raise_for
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.machine.node import Node

CLOSED = -1
"""Marks a file that is opened at each reading, for lack of descriptors."""
UNUSED = -2
"""Marks a file that is never read: it has no values, or reading is not permitted."""

LARGEST = 1024
"""Bytes read of a file. All used fields are within these bytes."""

_RESERVED = 256
_ROOM = 8
_NO_LIMIT = 1_048_576


class Descriptors:
    """Files of the node that are kept open. free: number of files that may be added.

    Other parts of this process also open files, and the limit may be lowered at run time. If no
    file can be opened, `give_back` is called to close some kept files, and fewer files are kept.
    """

    def __init__(self, node: Node, give_back: Callable[[int], None]) -> None:
        self._node = node
        self._give_back = give_back
        self._most = raise_limit()
        self._kept = 0

    @property
    def free(self) -> int:
        """Return the number of further files that may be kept."""
        return max(0, self._most - self._kept)

    def open(self, path: str) -> int:
        """Open a file to keep; CLOSED if no descriptor is free. Raise as `Node.read` does."""
        if self._kept >= self._most:
            return CLOSED
        try:
            descriptor = self._node.open(path)
        except ShortageError:
            self._make_room()
            return CLOSED
        self._kept += 1
        return descriptor

    def read(self, descriptor: int, path: str) -> bytes:
        """Read a file from its start, with its kept descriptor if it has one."""
        if descriptor < 0:
            try:
                return self._node.read_single(path)
            except ShortageError:
                if not self._make_room():
                    raise
                return self._node.read_single(path)
        try:
            return os.pread(descriptor, LARGEST, 0)
        except OSError as error:
            raise_for(path, error)

    def close(self, *descriptors: int) -> None:
        """Close the open ones of some descriptors."""
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
                self._kept -= 1

    def ensure_room(self) -> None:
        """Close kept files until a few other files can be opened, or none is kept."""
        while not _has_room() and self._make_room():
            pass

    def _make_room(self) -> bool:
        """Close half of the kept files, and keep at most the rest. Return False if none is kept."""
        before = self._kept
        if not before:
            self._most = 0
            return False
        self._give_back(max(before // 2, min(before, _ROOM)))
        self._most = self._kept
        logger.warning(
            "open files: the limit of descriptors is reached; files of processes are opened again "
            "for each sample: raise it (LimitNOFILE= of the service)"
        )
        return True


def _has_room() -> bool:
    """Return whether some files can be opened."""
    opened: list[int] = []
    try:
        while len(opened) < _ROOM:
            opened.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in {errno.EMFILE, errno.ENFILE}
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit. Return how many may stay open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = _NO_LIMIT
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # the soft limit is unchanged
    return max(0, soft - _RESERVED)
