"""The files of one queue in a directory: takeover, creation, files that can't be sent.

Each open segment is locked by its process. A process sends a segment only if it can lock it and
all older ones, so messages leave in order, and what a killed or finished process has left is taken
over by the next look at the directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import NotPermittedError
from ccagent.log import logger
from ccagent.queue.entry import read_boot_id, read_uptime, resume
from ccagent.queue.segment import (
    FILE_ERRORS,
    QueueSegment,
    SegmentHeader,
    describe_error,
    read_segment,
)
from ccagent.queue.segments import QueueSegments
from ccagent.service.private_directories import check_directory, make_directory
from ccagent.service.private_files import sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.config.configuration import OutboxSettings
    from ccagent.queue.entry import Moment, QueueEntry
    from ccagent.queue.segment import QueueOwner, SegmentContent

SEGMENT = ".log"
LETTERS = ".dead"
FOREIGN = ".foreign"
DAMAGED = ".damaged"
"""Suffixes of files: messages, dead letters, of another sink or machine, without any message."""

_NAME = re.compile(r"([0-9]{12})(\.log|\.dead)")
_OPEN = 4
"""Maximum number of open segments, except for those that are written."""


def is_segment(path: str) -> bool:
    """Return whether a file is a segment by its name."""
    return _NAME.fullmatch(os.path.basename(path)) is not None


class SegmentDirectory(QueueSegments):
    """The messages of one queue on disk.

    With the durability `process` a stored message survives the end of the process. With `power` it
    also survives a power failure, but each message waits for the disk. Methods raise OSError and
    NotPermittedError. `dropped` includes what earlier processes have dropped.
    """

    def __init__(
        self,
        path: str,
        owner: QueueOwner,
        settings: OutboxSettings,
        *,
        uptime: Callable[[], float] = read_uptime,
        boot_id: Callable[[], bytes] = read_boot_id,
    ) -> None:
        super().__init__(owner, settings, uptime=uptime, boot_id=boot_id)
        self.path = path
        self.set_aside: list[str] = []
        """Names of files of other sinks or machines."""
        self._last = 0

    def open(self) -> list[QueueEntry]:
        """Create the directory if needed, and look at all its files, also those with problems.

        Return what `look` returns.
        """
        self._make_directories()
        for segment in [*self._segments.values()]:
            if segment.problem:
                segment.problem = ""
                self._examine(segment)
        return self.look()

    def look(self) -> list[QueueEntry]:
        """Take over new segments of the directory that no other process has locked.

        Return the messages and dead letters of open files that somebody has removed.
        """
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            self._make_directories()
            names = []
        self.set_aside = sorted(name for name in names if name.endswith(FOREIGN))
        there = {int(match[1]): match for name in names if (match := _NAME.fullmatch(name))}
        rescued: list[QueueEntry] = []
        for number, segment in [*self._segments.items()]:
            if number not in there or (segment.file.is_open and not segment.file.is_current()):
                rescued += self._give_up(segment)
            elif segment.is_elsewhere:
                self._examine(segment)
            elif (
                segment.is_finished
                and segment.file.is_open
                and segment not in self._written.values()
            ):
                self._delete(segment)
        for number in sorted(there.keys() - self._segments.keys()):
            name, suffix = there[number][0], there[number][2]
            segment = QueueSegment(os.path.join(self.path, name), number, is_dead=suffix == LETTERS)
            self._segments[number] = segment
            self._last = max(self._last, number)
            self._examine(segment)
        self._segments = dict(sorted(self._segments.items()))
        return rescued

    def _make_directories(self) -> None:
        for path in (os.path.dirname(self.path), self.path):
            make_directory(path)
            if reason := check_directory(path):
                raise NotPermittedError(reason)

    @property
    def problem(self) -> str:
        """The first file that can't be read now, and the reason; empty without one."""
        failed = (each for each in self._segments.values() if each.problem)
        return next((f"{each.path}: {each.problem}" for each in failed), "")

    def read_files(self) -> dict[str, SegmentContent]:
        """Read all files without locks: content by name, oldest first; none without a directory."""
        contents: dict[str, SegmentContent] = {}
        names = os.listdir(self.path) if os.path.lexists(self.path) else []
        for name in sorted(names):
            if _NAME.fullmatch(name) or name.endswith(FOREIGN):
                with contextlib.suppress(FileNotFoundError):
                    path = os.path.join(self.path, name)
                    contents[name] = read_segment(path, self.owner)
        return contents

    def is_removed(self) -> bool:
        """Return whether somebody has deleted the segment that is written."""
        written = self._written.get(False)
        return written is not None and not os.fstat(written.file.descriptor).st_nlink

    def close(self) -> None:
        """Free unused space, and unlock all segments."""
        for segment in [*self._segments.values()]:
            if segment.file.is_open and segment.is_finished and not self.dropped:
                self._delete(segment)
            elif segment.file.is_open:
                segment.file.truncate()
                segment.close()
        super().close()

    def _ensure_open(self, segment: QueueSegment) -> bool:
        if not segment.file.is_open:
            self._examine(segment)
        return segment.file.is_open

    def _is_written(self, segment: QueueSegment) -> bool:
        return segment in self._written.values()

    def _close_others(self, segment: QueueSegment) -> None:
        """Close some segments beside one that was opened."""
        opened = [
            each for each in self._in_order() if each.file.is_open and not self._is_written(each)
        ]
        for other in opened[1 : len(opened) - _OPEN + 1]:  # the oldest stays: it is sent
            if other is not segment:
                other.close()

    def _examine(self, segment: QueueSegment) -> None:
        """Lock and read a segment, and delete it or set it aside if nothing in it can be sent."""
        try:
            if not segment.open(self.owner):
                return
        except FileNotFoundError:
            self._forget(segment)
            return
        except FILE_ERRORS as error:
            self._note_problem(segment, error)
            return
        header = segment.header
        if segment.is_foreign and header is not None:
            logger.error(
                "outbox %s: queued by host %s for sink %s, so it is set aside; "
                "`ccagent outbox` shows its messages",
                segment.path,
                header.owner.host,
                header.owner.sink,
            )
            self._set_aside(segment, FOREIGN)
            return
        self.dropped = max(self.dropped, header.dropped if header is not None else 0)
        if segment.damaged and not segment.is_counted:
            self.damaged += len(segment.damaged)
            logger.error(
                "outbox %s: %d bytes are damaged; %d undamaged messages are sent",
                segment.path,
                sum(part.size for part in segment.damaged),
                segment.count,
            )
        segment.is_counted = True
        if segment.is_unreadable:
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
        """Close a segment, and leave it out until the next `open`."""
        segment.problem = describe_error(error)
        logger.error("outbox %s: %s", segment.path, segment.problem, key=segment.path)
        if self._is_written(segment):
            del self._written[segment.is_dead]
        segment.close()

    def _give_up(self, segment: QueueSegment) -> list[QueueEntry]:
        """Forget a segment that is not in the directory any more. Return what can be read of it."""
        entries: list[QueueEntry] = []
        if segment.file.is_open and not os.fstat(segment.file.descriptor).st_nlink:
            with contextlib.suppress(OSError):
                for message in segment.parse(self.owner).messages:
                    if message.entry is not None and not message.is_done:
                        reason = message.reason if message.is_dead else ""
                        entries.append(msgspec.structs.replace(message.entry, reason=reason))
        lost = segment.count + segment.dead - len(entries)
        if lost > 0 and not segment.is_elsewhere:
            logger.error("outbox %s: removed or replaced with %d messages", segment.path, lost)
        self._forget(segment)
        return entries

    def _forget(self, segment: QueueSegment) -> None:
        segment.close()
        super()._delete(segment)

    def _delete(self, segment: QueueSegment) -> None:
        """Delete the file of a segment. If that fails, the next look tries it again."""
        try:
            os.unlink(segment.path)
        except FileNotFoundError:
            pass
        except OSError:
            return
        self._forget(segment)

    def _find_moment(self) -> Moment:
        """Return the last reading of the clock in the newest segment."""
        newest = max(self._segments.values(), key=lambda each: each.number, default=None)
        if newest is None:
            return super()._find_moment()
        last = newest.header.moment if newest.header is not None else None
        return resume(last, newest.newest, self._boot, self._uptime())

    def _read_message(self, segment: QueueSegment, position: int) -> QueueEntry | None:
        try:
            return super()._read_message(segment, position)
        except OSError as error:
            self._note_problem(segment, error)
            return None

    def _find_writable(self, size: int, *, is_dead: bool) -> QueueSegment:
        if not is_dead and False not in self._written:
            self._reopen_newest(size)
        return super()._find_writable(size, is_dead=is_dead)

    def _reopen_newest(self, size: int) -> None:
        """Continue the newest segment if this process may do so."""
        segment = max(self._in_order(), key=lambda each: each.number, default=None)
        if segment is None or segment.file.size + size > self._limit:
            return
        if segment.is_elsewhere or segment.problem:
            return
        # The clock of a segment is that of one boot.
        if segment.header is None or segment.header.moment.boot != self._boot:
            return
        if self._ensure_open(segment):
            segment.file.truncate()  # behind the last message may be damaged bytes
            segment.allocate(self._limit)
            self._written[False] = segment

    def _seal(self, segment: QueueSegment) -> None:
        super()._seal(segment)
        if segment.is_dead:
            segment.close()
        elif not segment.is_finished:
            self._close_others(segment)

    def _create(self, size: int, *, is_dead: bool) -> QueueSegment:
        header = SegmentHeader(self.now(), self.dropped, self.owner)
        while True:
            # No number is used twice, so a restored file never replaces a newer one.
            self._last = max(self._last + 1, int(time.time()))
            name = f"{self._last:012}{LETTERS if is_dead else SEGMENT}"
            segment = QueueSegment(os.path.join(self.path, name), self._last, is_dead=is_dead)
            with contextlib.suppress(FileExistsError):
                if segment.create(header, max(self._limit, size)):
                    break
        if self._is_synced:
            sync_directory(self.path)
        return segment
