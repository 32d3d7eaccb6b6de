"""Files that are kept open between readings, within RLIMIT_NOFILE."""

from __future__ import annotations

import errno
import os
import resource
from os.path import dirname
from typing import TYPE_CHECKING, Any

from ccagent.errors import (
    CcagentError,
    NotHereError,
    ShortageError,
    UnparsableError,
    VanishedError,
    raise_for,
)
from ccagent.log import logger
from ccagent.machine.node import LARGEST_FILE, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


CLOSED = -1
"""Marks a file that is opened at each reading, for lack of descriptors."""
UNUSED = -2
"""Marks a file that is never read: it has no values, or reading is not permitted."""

LARGEST = 1024
"""Bytes read of a file of a process. All used fields are within these bytes."""

_RESERVED = 256
_ROOM = 8
_NO_LIMIT = 1_048_576


class Descriptors:
    """Files of the node that are kept open.

    Other parts of this process also open files, and the limit may be lowered at run time. If no
    file can be opened, `give_back` is called to close some kept files, and fewer files are kept.
    """

    def __init__(self, node: Node, give_back: Callable[[int], None], most: int = _NO_LIMIT) -> None:
        self._node = node
        self._give_back = give_back
        self._most = min(most, raise_limit())
        self._kept = 0

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
        opened: list[int] = []
        try:
            while len(opened) < _ROOM:
                try:
                    opened.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
                except OSError as error:
                    if error.errno not in {errno.EMFILE, errno.ENFILE} or not self._make_room():
                        return
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _make_room(self) -> bool:
        """Close half of the kept files, and keep at most the rest. Return False if none is kept."""
        before = self._kept
        if not before:
            self._most = 0
            return False
        self._give_back(max(before // 2, min(before, _ROOM)))
        self._most = self._kept
        logger.warning(
            "open files: the limit of descriptors is reached; files are opened again for each "
            "sample: raise it (LimitNOFILE= of the service)"
        )
        return True


_MOST_FILES = 4096
"""The kernel uses 4 KiB for each open file."""
_PIECE = 16 * 1024
_SHORT = 2048
"""A shorter piece is the whole file: the kernel fills pages with records of a few bytes."""
_GONE = frozenset({errno.EIO, errno.ENODEV, errno.ESRCH, errno.ESTALE})
"""EIO: a file of /proc whose module was removed."""
_READINGS_ABSENT = 10
"""Readings for which a missing file is not looked for again."""


class KeptFiles:
    """Small files of control groups and devices, kept open between readings.

    A reading is what is read between two calls of `sweep`. Files and directories that the last
    reading did not use are forgotten. The kernel answers ENODEV for a file of a removed control
    group or device: its path is then opened again. results: of `read_parsed`, by path: the content,
    its parser and what it returned. short: a shorter piece is the whole file; 0 for files of many
    records, which the kernel returns in pieces of any size.
    """

    def __init__(self, node: Node, most: int = _MOST_FILES, short: int = _SHORT) -> None:
        self.node = node
        self._short = short
        self.results: dict[str, tuple[bytes, Callable[[bytes], Any], Any]] = {}
        opened: dict[str, int] = {}

        def close_some(count: int) -> None:
            for path in [*opened][-count:]:
                descriptors.close(opened.pop(path))

        # The function does not refer to this object: it ends with its last reference.
        descriptors = self._descriptors = Descriptors(node, close_some, most)
        self._open = opened
        self._absent: dict[str, tuple[str, int]] = {}
        self._directories: dict[str, tuple[int, Sequence[str]]] = {}
        self._used: set[str] = set()
        self._readings = 0

    def read(self, path: str, limit: int = LARGEST_FILE) -> bytes:
        """Read a whole file. Raise as `Node.read` does."""
        self._used.add(path)
        descriptor = self._open.get(path)
        if descriptor is not None:
            try:
                content = os.pread(descriptor, _PIECE, 0)
            except OSError as error:
                if error.errno not in _GONE:
                    raise_for(path, error)
                self._descriptors.close(self._open.pop(path))
            else:
                return content if len(content) < self._short else self._finish(path, content, limit)
        absent = self._absent.get(path)
        if absent is not None:
            raise NotHereError(absent[0])
        try:
            descriptor = self._descriptors.open(path)
            if descriptor < 0:
                return self.node.read(path, limit)
            self._open[path] = descriptor
            return self._finish(path, b"", limit)
        except (NotHereError, VanishedError) as error:
            self._note_absent(path, error)
            raise

    read_single = read

    def directories(self, path: str) -> Sequence[str]:
        """Return the names of the directories in a directory. Raise as `Node.read` does.

        They are listed again if their number has changed, or if one was missing when it was read.
        A file system that does not count them has one link to each directory.
        """
        self._used.add(path)
        known = self._directories.get(path)
        try:
            links = self.node.links(path)
            if known is None or links != known[0] or links < 2:
                names = self.node.directories(path) if links != 2 else ()
                known = self._directories[path] = links, names
        except (NotHereError, VanishedError):
            self._directories.pop(path, None)
            self._directories.pop(dirname(path), None)
            raise
        return known[1]

    def sweep(self) -> None:
        """End a reading: forget what it did not use."""
        self._readings += 1
        for path in self._open.keys() - self._used:
            self._descriptors.close(self._open.pop(path))
        for path in self.results.keys() - self._used:
            del self.results[path]
        for path in self._directories.keys() - self._used:
            del self._directories[path]
        for path, (_, until) in [*self._absent.items()]:
            if until <= self._readings or path not in self._used:
                del self._absent[path]
        self._used.clear()

    def close(self) -> None:
        """Close all files. They are opened again when they are read."""
        self._used.clear()
        self.sweep()

    __del__ = close  # not before a reader that hangs in one of them

    def _finish(self, path: str, content: bytes, limit: int) -> bytes:
        """Return `content` and the rest of a file."""
        parts, size = [content], len(content)
        try:
            while part := os.pread(self._open[path], _PIECE, size):
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise UnparsableError(f"/{path}: larger than {limit} bytes")
                if size < self._short:
                    break
        except OSError as error:
            raise_for(path, error)
        return b"".join(parts)

    def _note_absent(self, path: str, error: CcagentError) -> None:
        """Remember a file that its directory lacks; list the parent again without the directory."""
        directory = dirname(path)
        if isinstance(error, NotHereError) and (not self._short or self.node.exists(directory)):
            self._absent[path] = str(error), self._readings + _READINGS_ABSENT
        else:
            self._directories.pop(dirname(directory), None)


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
