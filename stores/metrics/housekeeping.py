"""Housekeeping of a store: retention, limits of memory and disk, old log files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.log import logger
from ccagent.stores.metrics.archiving import SegmentArchive

if TYPE_CHECKING:
    from ccagent.stores.metrics.log_writer import Segment, WriteAheadLog
    from ccagent.stores.metrics.store import MetricStore

REPLAYED = 2
"""Retentions of which a start reads the log: nodes with running jobs keep older values."""

_PARTS = (75, 50, 25)
"""Percent of the retention that are kept when memory is short, step by step."""

_ARCHIVED_FROM = 0.8
"""Part of the disk cap from which on the oldest segments are archived."""


class Housekeeper:
    """Releases what is too old or too much."""

    def __init__(
        self,
        store: MetricStore,
        log: WriteAheadLog | None,
        *,
        retention: int,
        memory_cap: int = 0,
        disk_cap: int = 0,
        archive: str = "",
    ) -> None:
        """Take the retention in seconds, caps in bytes, 0: none, and the archive's directory."""
        self.released = 0
        """Buffers that were released."""
        self.unarchived = 0
        """Segments that the disk cap deleted before they were archived."""
        self.archive = SegmentArchive(archive)
        self._store = store
        self._log = log
        self._retention = retention
        self._memory_cap = memory_cap
        self._disk_cap = disk_cap

    def retain(self, spared: frozenset[tuple[str, str]] = frozenset()) -> int:
        """Release what is older than the retention, but nothing of spared nodes."""
        limit = int(self._store.now()) - self._retention
        released = self._store.release_before(limit, spared)
        self.released += released
        if released:
            logger.info("released %d buffers that end before %d", released, limit)
        return released

    def limit_memory(self) -> int:
        """Release the oldest values while they take more than the cap.

        If that is not enough, no new series are taken: many names must not take all memory.
        """
        released, was_full = 0, self._store.is_full
        for percent in _PARTS:
            if not self._memory_cap or self._store.pool.in_use <= self._memory_cap:
                break
            limit = int(self._store.now()) - self._retention * percent // 100
            released += self._store.release_before(limit)
        self._store.is_full = bool(self._memory_cap) and self._store.pool.in_use > self._memory_cap
        if self._store.is_full and not was_full:
            logger.error(
                "values of the last hours take more than the memory cap of %d bytes: new series are"
                " refused", self._memory_cap,
            )  # fmt: skip
        if released:
            self.released += released
            logger.warning(
                "values took more than the memory cap of %d bytes: released %d buffers",
                self._memory_cap, released,
            )  # fmt: skip
        return released

    def old_segments(self, *, is_spared: bool = False) -> list[Segment]:
        """Return the segments of the log of which no value is within the retention.

        is_spared: some nodes keep older values. Then those are left that the next start reads.
        """
        if self._log is None:
            return []
        limit = int(self._store.now()) - self._retention * (REPLAYED if is_spared else 1)
        return [segment for segment in self._log.closed if segment.newest < limit]

    def check_log(self) -> None:
        """Go on in a new segment if the last one was removed: it would be lost with what comes."""
        if self._log is not None and not self._log.check_file():
            logger.error(
                "log: the newest segment was removed by somebody: its values are in memory only,"
                " and lost at the next start"
            )

    async def remove_old(self, *, is_spared: bool = False) -> None:
        """Archive and delete the segments of which no value is within the retention."""
        for segment in self.old_segments(is_spared=is_spared):
            if await self.archive.add(segment):
                self._remove(segment)

    async def limit_disk(self) -> None:
        """Delete the oldest segments while the log is larger than its cap, archived ones if it can.

        The archive gets them before that. What it can't take then is deleted all the same, with an
        error: others need the disk, too.
        """
        log, cap = self._log, self._disk_cap
        if log is None or not cap:
            return
        excess = log.size - int(cap * _ARCHIVED_FROM)
        for segment in list(log.closed):
            if excess <= 0 or not await self.archive.add(segment):
                break
            excess -= segment.size
        while log.closed and log.size > cap:
            oldest = log.closed[0]
            if await self.archive.add(oldest):
                logger.warning(
                    "the log has more than its cap of %d bytes: deleting %s, values until %d",
                    cap, oldest.path, oldest.newest,
                )  # fmt: skip
            else:
                self.unarchived += 1
                logger.error(
                    "the log has more than its cap of %d bytes: deleting %s, values until %d, which"
                    " the archive %s could not take: they are lost", cap, oldest.path,
                    oldest.newest, self.archive.directory,
                )  # fmt: skip
            if not self._remove(oldest):
                return

    def _remove(self, segment: Segment) -> bool:
        """Delete a segment; return whether it is gone."""
        if self._log is not None and segment in self._log.closed:
            try:
                self._log.remove(segment)
            except OSError as error:
                logger.error("log %s can't be deleted: %s", segment.path, error.strerror)
                return False
            self.archive.forget(segment)
        return True
