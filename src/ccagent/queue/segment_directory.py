"""The segments of one queue: in memory, and in the files of a directory.

A segment begins in memory, and is moved to a file at once if there is a directory that works. Each
open file is locked by its process. A process sends a file only if it can lock it and all older
ones, so messages leave in order, and what a killed or finished process has left is taken over by
the next look at the directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING

from ccagent.errors import NotPermittedError
from ccagent.log import logger
from ccagent.queue.record_log import FILE_ERRORS, describe_error
from ccagent.queue.segment import Moment, QueueSegment, SegmentHeader, encode_header, read_segment
from ccagent.service.private_directories import check_directory, make_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.config.configuration import OutboxSettings
    from ccagent.machine.clock import Clock
    from ccagent.queue.segment import QueueOwner, SegmentContent

SEGMENT = ".log"
LETTERS = ".dead"
FOREIGN = ".foreign"
DAMAGED = ".damaged"
"""Suffixes of files: messages, dead letters, of another sink or machine, without any message."""

_NAME = re.compile(r"[0-9]{12}(\.log|\.dead)")
_LARGEST = 1 << 20
_LEAST = 4096
_SEGMENTS = 8
"""Minimum number of segments of a full queue: the oldest is deleted as a whole."""


def is_segment(path: str) -> bool:
    """Return whether a file is a segment by its name, also one that is set aside."""
    name = os.path.basename(path)
    return _NAME.fullmatch(name) is not None or name.endswith((FOREIGN, DAMAGED))


def read_files(directory: str, owner: QueueOwner) -> dict[str, SegmentContent]:
    """Read a queue without locks: content by path, oldest first; none without a directory."""
    contents: dict[str, SegmentContent] = {}
    names = os.listdir(directory) if os.path.lexists(directory) else []
    for name in sorted(names):
        if is_segment(name) and not name.endswith(DAMAGED):
            path = os.path.join(directory, name)
            with contextlib.suppress(FileNotFoundError):
                contents[path] = read_segment(path, owner)
    return contents


def resume(last: Moment | None, newest: float, boot: bytes, uptime: float) -> Moment:
    """Return the reading at `uptime` seconds of the boot `boot`, of a clock that was stored.

    last: reading in the newest file, None if damaged; newest: the newest message's seconds.
    """
    if last is None:
        return Moment(newest, boot, uptime)
    if last.boot == boot and last.uptime <= uptime:
        return Moment(last.clock + uptime - last.uptime, boot, uptime)
    return Moment(newest + uptime, boot, uptime)


class SegmentDirectory:
    """The segments of one queue. path: of the directory; empty if all stay in memory.

    With the durability `process` a stored message survives the end of the process. With `power` it
    also survives a power failure, but each message waits for the disk.
    """

    def __init__(
        self, path: str, owner: QueueOwner, settings: OutboxSettings, clock: Clock
    ) -> None:
        self.path = path
        self.owner = owner
        self.failure = ""
        """The reason why new segments stay in memory; empty while the disk works."""
        self.set_aside: list[str] = []
        """Names of files of other sinks or machines."""
        self.all_dropped: int = 0
        """Messages and dead letters deleted because of the limits, also by earlier processes."""
        self.damaged: int = 0
        """Damaged parts of files, and undecodable messages, since the start."""
        self._settings = settings
        self._seed = owner.seed
        self._limit = max(_LEAST, min(_LARGEST, settings.max_bytes // _SEGMENTS))
        self._is_synced = settings.durability == "power"
        self._clock = clock
        self._boot = clock.boot_id()
        self._moment: Moment | None = None
        self._header_size = len(encode_header(SegmentHeader(Moment(0.0, b"", 0.0), 0, owner)))
        self._segments: dict[int, QueueSegment] = {}
        self._written: dict[bool, QueueSegment] = {}
        """The segments that are written: dead letters (True), messages (False)."""
        self._last = 0

    @property
    def error(self) -> str:
        """The failure, or the first file that can't be read now with the reason; or empty."""
        failed = (each for each in [*self._segments.values()] if each.problem)
        return self.failure or next((f"{each.path}: {each.problem}" for each in failed), "")

    def look(self, *, is_retry: bool = False) -> None:
        """Take over new segments of the directory that no other process has locked.

        Keep open files that somebody has removed, and move them and others from memory to files.
        is_retry: try files that could not be read again. Raise OSError or NotPermittedError.
        """
        if is_retry or not os.path.isdir(self.path):
            for path in (os.path.dirname(self.path), self.path):
                make_directory(path)
                if reason := check_directory(path):
                    raise NotPermittedError(reason)
        names = os.listdir(self.path)
        self.set_aside = sorted(name for name in names if name.endswith(FOREIGN))
        there = {int(name.partition(".")[0]): name for name in names if _NAME.fullmatch(name)}
        for number, segment in [*self._segments.items()]:
            if segment.path:
                self._look_at(segment, is_there=number in there, is_retry=is_retry)
        for number in sorted(there.keys() - self._segments.keys()):
            path = os.path.join(self.path, there[number])
            segment = QueueSegment(path, number, is_dead=path.endswith(LETTERS))
            self._segments[number] = segment
            self._last = max(self._last, number)
            self._examine(segment)
        self._segments = dict(sorted(self._segments.items()))
        for segment in [*self._segments.values()]:
            if not segment.path:
                self._store(segment)

    def _look_at(self, segment: QueueSegment, *, is_there: bool, is_retry: bool) -> None:
        """Look at a known file again. is_there: the directory has a file of its name."""
        if not is_there or (segment.file.is_open and not segment.file.is_current()):
            self._give_up(segment)
        elif segment.is_elsewhere or (segment.problem and is_retry):
            self._examine(segment)
        elif self._is_written(segment) or not segment.is_finished or segment.problem:
            return
        elif self._ensure_open(segment):
            self._delete(segment)  # this has failed before

    def _close_files(self) -> None:
        """Free unused space, delete finished files, and unlock the others."""
        for segment in [*self._segments.values()]:
            # A file keeps the number of dropped messages.
            if segment.file.is_open and segment.is_finished and not self.all_dropped:
                self._delete(segment)
            if segment.file.is_open:
                segment.file.truncate()
                segment.close()
        self._written.clear()

    def now(self) -> Moment:
        """Return the reading of the queue's clock, which continues that of the newest segment."""
        uptime = self._clock.uptime()
        if self._moment is None:
            newest = max(self._segments.values(), key=lambda each: each.number, default=None)
            last = newest.header.moment if newest and newest.header else None
            self._moment = resume(last, newest.newest if newest else 0.0, self._boot, uptime)
        begin = self._moment
        return Moment(begin.clock + uptime - begin.uptime, begin.boot, uptime)

    def _in_order(self) -> Iterator[QueueSegment]:
        """Return the segments of messages, oldest first."""
        return (each for each in [*self._segments.values()] if not each.is_dead)

    def _is_written(self, segment: QueueSegment) -> bool:
        return self._written.get(segment.is_dead) is segment

    def _ensure_open(self, segment: QueueSegment) -> bool:
        """Open the file of a segment if needed. Return whether it is open."""
        if not segment.file.is_open:
            self._examine(segment)
        return segment.file.is_open

    def _close_others(self, segment: QueueSegment) -> None:
        """Close the files beside an opened one, except for the oldest and the written ones."""
        kept = {segment, next(self._in_order(), None), *self._written.values()}
        for other in self._segments.values():
            if other.path and other.file.is_open and other not in kept:
                other.close()

    def _examine(self, segment: QueueSegment) -> None:
        """Lock and read a segment, and delete it or set it aside if nothing in it can be sent."""
        segment.problem = ""
        try:
            content = segment.open(self.owner)
        except FileNotFoundError:
            self._forget(segment)
            return
        except FILE_ERRORS as error:
            self._note_problem(segment, error)
            return
        if content is None:
            return
        header = content.header
        if content.foreign:
            logger.error(
                "outbox %s: %s, so it is set aside; `ccagent outbox` shows its messages",
                segment.path,
                content.foreign,
            )
            self._set_aside(segment, FOREIGN)
            return
        if header is not None:
            self.all_dropped = max(self.all_dropped, header.dropped)
        if content.damaged and not segment.is_counted:
            self.damaged += len(content.damaged)
            logger.error(
                "outbox %s: %d bytes are damaged; %d undamaged messages are sent",
                segment.path,
                content.damaged_bytes,
                segment.count,
            )
        segment.is_counted = True
        if content.damaged and header is None and not content.messages:
            self._set_aside(segment, DAMAGED)
        elif segment.is_finished:
            self.now()  # the file may have the last reading of the clock
            self._delete(segment)
        elif segment.is_dead:
            segment.close()
        else:
            self._close_others(segment)

    def _set_aside(self, segment: QueueSegment, suffix: str) -> None:
        """Rename a file that can't be sent, so that it is not looked at again."""
        aside = f"{segment.path}.{time.time_ns()}{suffix}"
        try:
            os.rename(segment.path, aside)
        except OSError as error:
            self._note_problem(segment, error)
            return
        self.set_aside.append(os.path.basename(aside))
        self._forget(segment)

    def _note_problem(self, segment: QueueSegment, error: Exception) -> None:
        """Close a segment, and leave it out until its file is tried again."""
        segment.problem = describe_error(error, segment.path)
        logger.error("outbox %s: %s", segment.path, segment.problem, key=segment.path)
        if self._is_written(segment):
            del self._written[segment.is_dead]
        segment.close()

    def _give_up(self, segment: QueueSegment) -> None:
        """Move an open file that somebody has removed to memory; else forget its messages."""
        count = segment.count + segment.dead
        if segment.file.is_open and segment.file.is_removed():
            path = segment.path
            with contextlib.suppress(OSError):
                segment.rescue()
                logger.error("outbox %s: removed or replaced; %d messages are kept", path, count)
                return
        if count and not segment.is_elsewhere:
            logger.error("outbox %s: removed or replaced with %d messages", segment.path, count)
        self._forget(segment)

    def _forget(self, segment: QueueSegment) -> None:
        """Close a segment, and remove it from the list."""
        segment.close()
        self._segments.pop(segment.number, None)
        if self._is_written(segment):
            del self._written[segment.is_dead]

    def _delete(self, segment: QueueSegment) -> None:
        """Delete a segment. If its file can't be deleted, the next look tries it again."""
        try:
            if segment.path:
                os.unlink(segment.path)
        except FileNotFoundError:
            pass
        except OSError:
            return
        self._forget(segment)

    def _find_writable(self, size: int, *, is_dead: bool) -> QueueSegment:
        """Return a segment in which records of this size fit: in a file unless the disk fails.

        Raise OSError or NotPermittedError if it can't be moved to a file; it is then in memory.
        """
        segment = self._written.get(is_dead)
        if segment is not None and segment.file.size + size > self._limit:
            self._seal(segment)
            segment = None
        if segment is None and not is_dead:
            segment = self._reopen_newest(size)
        if segment is None:
            segment = QueueSegment("", self._find_number(), is_dead=is_dead)
            segment.begin(SegmentHeader(self.now(), self.all_dropped, self.owner))
            self._segments[segment.number] = segment
        self._written[is_dead] = segment
        if self.path and not segment.path and not self.failure:
            self._store(segment, size)
        return segment

    def _find_number(self) -> int:
        """Return a number for a new segment.

        No number is used twice, so a restored file never replaces a newer one.
        """
        self._last = max(self._last + 1, int(time.time()))
        return self._last

    def _reopen_newest(self, size: int) -> QueueSegment | None:
        """Return the newest segment if this process may continue it, and there is room."""
        segment = max(self._in_order(), key=lambda each: each.number, default=None)
        if segment is None or segment.file.size + size > self._limit:
            return None
        if segment.is_elsewhere or segment.problem or (segment.path and self.failure):
            return None
        # The clock of a segment is that of one boot.
        if segment.header is None or segment.header.moment.boot != self._boot:
            return None
        if not self._ensure_open(segment):
            return None
        segment.file.truncate()  # behind the last message may be damaged bytes
        segment.file.allocate(self._limit)
        return segment

    def _store(self, segment: QueueSegment, size: int = 0) -> None:
        """Move a segment from memory to a file, with room for `size` more bytes."""
        room = max(self._limit, segment.file.size + size)
        suffix = LETTERS if segment.is_dead else SEGMENT
        while not segment.path:
            path = os.path.join(self.path, f"{segment.number:012}{suffix}")
            try:
                segment.store(path, room, is_synced=self._is_synced)
            except FileExistsError:  # of another process
                del self._segments[segment.number]
                segment.number = self._find_number()
                self._segments[segment.number] = segment
        self._close_others(segment)

    def _seal(self, segment: QueueSegment) -> None:
        """Stop writing a segment."""
        del self._written[segment.is_dead]
        if segment.is_finished:
            self._delete(segment)
