"""Writer of the write-ahead log. One write contains the records of many messages."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.queue.record_log import FILE_ERRORS, LogFile, create_file, describe_error
from ccagent.service.private_directories import make_directory
from ccagent.service.private_files import sync_directory
from ccagent.stores.metrics.log_format import (
    MAGIC,
    encode_freed,
    encode_group,
    encode_points,
    encode_runs,
)

if TYPE_CHECKING:
    from ccagent.stores.metrics.groups import SeriesGroup

_NAME = re.compile(r"([0-9]{12})\.log")
_LARGEST = 256 << 20
_LONGEST = 3600.0
_SEGMENTS = 16
"""Maximum number of segments of a log with a cap."""

_APART = 1 << 20
"""Minimum bytes between two copies of a description, so that one damage does not affect both."""

_MOST_COPIES = 64
"""Maximum number of second copies in one write."""


class StoreLogError(CcagentError):
    """The log can't be written; the values are only in memory."""


class Segment(NamedTuple):
    """A closed file of the log. newest: latest time of its values."""

    path: str
    size: int
    newest: int


def largest_segment(cap: int) -> int:
    """Return the size in bytes at which a segment is closed. cap: limit of the log, 0: none.

    The cap deletes whole segments, so it needs several of them.
    """
    return min(_LARGEST, max(cap // _SEGMENTS, 1)) if cap else _LARGEST


def list_segments(directory: str) -> list[tuple[int, str]]:
    """Return number and path of each segment, oldest first."""
    found = (_NAME.fullmatch(entry) for entry in os.listdir(directory))
    return sorted((int(one[1]), os.path.join(directory, one[0])) for one in found if one)


LoggedRun = tuple["SeriesGroup", int, bytes]
"""Values of a group at one time: group, first column, and the values as float64."""


class WriteAheadLog:
    """Appends records to the newest segment of a directory.

    Records are collected until `flush`. Flushed records survive the end of the process, synced
    records also a power failure.
    """

    def __init__(self, directory: str, *, largest: int = _LARGEST) -> None:
        self.closed: list[Segment] = []
        """Complete segments, oldest first."""
        self.failures = 0
        self._directory = directory
        self._largest = largest
        self._pending: list[bytes] = []
        self._number = max((number for number, _ in list_segments(directory)), default=0) + 1
        self._file: LogFile | None = None
        self._newest = 0
        self._began = 0.0
        self._unsynced: list[LogFile] = []
        self.is_dirty = False
        """True while flushed records are not synced yet."""
        self._has_new_name = False
        """True if the name of a segment may not be on the disk yet."""
        self._copies: deque[tuple[int, bytes]] = deque()
        """Descriptions with one copy in the segment so far, and the copy's position."""

    def add_runs(self, time: int, runs: list[LoggedRun]) -> None:
        """Add values of one time in runs of consecutive columns."""
        for group, _, _ in runs:
            self._describe(group, time)
        self._pending.append(
            encode_runs(time, [(group.number, first, values) for group, first, values in runs])
        )

    def add_points(self, group: SeriesGroup, time: int, columns: bytes, values: bytes) -> None:
        """Add values of one time. columns: int64. values: float64."""
        self._describe(group, time)
        self._pending.append(encode_points(group.number, time, columns, values))

    def add_freed(self, selectors: list[list[str]], until: int) -> None:
        """Add a record of released values."""
        self._pending.append(encode_freed(selectors, until))

    @property
    def size(self) -> int:
        """Size of all segments in bytes."""
        return self._position + sum(segment.size for segment in self.closed)

    def flush(self) -> None:
        """Write the added records. On failure write none of them, and raise StoreLogError."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        records = b"".join([*pending, *self._due_copies()])
        try:
            if self._file is None:
                self._file = self._create(records)
            else:
                self._file.append(records)
        except FILE_ERRORS as error:
            self.failures += 1
            self.rotate()
            raise StoreLogError(f"{self._directory}: {describe_error(error)}") from error
        self.is_dirty = True
        if self._file.size > self._largest or monotonic() - self._began > _LONGEST:
            self.rotate()

    def sync(self) -> None:
        """Sync flushed records to disk, from any thread. Raise StoreLogError."""
        self.is_dirty = False
        # In this order: another thread may start the next segment meanwhile.
        newest = self._file
        old, self._unsynced = self._unsynced, []
        has_new_name, self._has_new_name = self._has_new_name, False
        try:
            for file in old:
                file.sync()
                file.close()
            if newest is not None and newest not in old:
                newest.sync()
            if has_new_name:
                sync_directory(self._directory)
        except OSError as error:
            self._has_new_name |= has_new_name
            raise StoreLogError(f"{self._directory}: {describe_error(error)}") from error

    def check_file(self) -> bool:
        """Begin a new segment if somebody has removed this one; return whether it was there."""
        if self._file is None or self._file.is_current():
            return True
        self._unsynced.append(self._file)
        self._file = None
        self.rotate()
        return False

    def rotate(self) -> None:
        """Start a new segment with the next record."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk has no room for second copies
                self._file.append(b"".join([copy for _, copy in self._copies]))
            self.closed.append(Segment(self._file.path, self._file.size, self._newest))
            self._unsynced.append(self._file)
        self._file, self._newest = None, 0
        self._copies.clear()
        self._number += 1  # the next segment must describe its groups again

    def remove(self, segment: Segment) -> None:
        """Delete a closed segment."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(segment.path)
        self.closed.remove(segment)

    def close(self) -> None:
        """Write and sync the remaining records. Raise StoreLogError."""
        self.flush()
        self.rotate()
        self.sync()

    @property
    def _position(self) -> int:
        """The size of the segment that is written."""
        return self._file.size if self._file is not None else 0

    def _create(self, records: bytes) -> LogFile:
        """Create the next segment with its first records, wholly or not at all."""
        if not os.path.isdir(self._directory):
            # Somebody has removed the directory while the store runs.
            make_directory(os.path.dirname(self._directory))
            make_directory(self._directory)
            logger.error("log: %s was removed and is made again", self._directory)
        path = os.path.join(self._directory, f"{self._number:012}.log")
        self._began = monotonic()
        with create_file(path) as file:
            file.append(MAGIC + records)
        self._has_new_name = True
        return file

    def _describe(self, group: SeriesGroup, time: int) -> None:
        """Describe a group before its first values in this segment."""
        self._newest = max(self._newest, time)
        if group.segment == self._number:
            return
        described = encode_group(group)
        self._pending.append(described)
        self._copies.append((self._position, described))
        group.segment = self._number

    def _due_copies(self) -> list[bytes]:
        """Return second copies of descriptions that are far enough from their first copies."""
        copies, due = self._copies, list[bytes]()
        while copies and self._position - copies[0][0] > _APART and len(due) < _MOST_COPIES:
            due.append(copies.popleft()[1])
        return due
