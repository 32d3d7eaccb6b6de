"""Housekeeping of a store: retention, limits of memory and disk, old log files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.log import logger

if TYPE_CHECKING:
    from ccagent.stores.metrics.log_writer import Segment, WriteAheadLog
    from ccagent.stores.metrics.store import MetricStore

REPLAYED = 2
"""Retentions of which a start reads the log: nodes with running jobs keep older values."""

_PARTS = (75, 50, 25)
"""Percent of the retention that are kept when memory is short, step by step."""


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
    ) -> None:
        """Take the retention in seconds, and caps in bytes; 0: none."""
        self.released = 0
        """Buffers that were released."""
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

    def remove_segment(self, segment: Segment) -> None:
        """Delete a segment."""
        if self._log is None:
            return
        try:
            self._log.remove(segment)
        except OSError as error:
            logger.error("log %s can't be deleted: %s", segment.path, error.strerror)

    def limit_disk(self) -> None:
        """Delete the oldest segments while the log is larger than its cap."""
        log = self._log
        while log is not None and self._disk_cap and log.closed and log.size > self._disk_cap:
            oldest = log.closed[0]
            logger.warning(
                "the log has more than its cap of %d bytes: deleting %s, values until %d",
                self._disk_cap, oldest.path, oldest.newest,
            )  # fmt: skip
            try:
                log.remove(oldest)
            except OSError as error:
                logger.error("log %s can't be deleted: %s", oldest.path, error.strerror)
                return
