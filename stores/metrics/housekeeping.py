"""Retention, limits of memory and disk, the archive, and nodes of running jobs, kept longer.

A separate program archives a segment of the log as Parquet: the store loads no Parquet library.
"""

from __future__ import annotations

import asyncio
import os
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import CcagentError, NotHereError, ProgramError
from ccagent.log import logger
from ccagent.stores.process import run_program

if TYPE_CHECKING:
    from ccagent.stores.metrics.log_writer import Segment, WriteAheadLog
    from ccagent.stores.metrics.store import MetricStore


REPLAYED = 2
"""Number of retentions of log that a start reads: nodes of running jobs keep older values."""

_PARTS = (75, 50, 25)
"""Percentages of the retention that are tried, in order, if memory exceeds its cap."""

_ARCHIVED_FROM = 0.8
"""Share of the disk cap from which on the oldest segments are archived."""

_WRITE_SECONDS = 600.0
"""Maximum duration for a segment. During this time the log may exceed its cap."""

_AGAIN_AFTER = 60.0
"""Seconds until a failed segment is tried again."""

_ASK_SECONDS = 10.0
_LARGEST = 64 << 20


class SegmentArchive:
    """Archives one segment at a time, and records the archived segments.

    directory: empty without an archive; then every segment counts as archived.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._archived: set[str] = set()
        self._failed: dict[str, float] = {}
        self._turn = asyncio.Lock()

    async def add(self, segment: Segment) -> bool:
        """Archive a segment. Return whether it may be deleted."""
        async with self._turn:
            if not self.directory or segment.path in self._archived:
                return True
            if not await asyncio.to_thread(os.path.exists, segment.path):
                logger.error("log %s was removed before it was archived", segment.path)
                return True
            if monotonic() < self._failed.get(segment.path, 0.0):
                return False
            try:
                arguments = segment.path, self.directory, str(segment.newest)
                await run_program("archive_writer", *arguments, seconds=_WRITE_SECONDS)
            except (OSError, ProgramError, TimeoutError) as error:
                self._failed[segment.path] = monotonic() + _AGAIN_AFTER
                reason = str(error) or "time limit exceeded"
                logger.error(
                    "archive %s: %s: %s; retrying later", self.directory, segment.path, reason
                )
                return False
            self._archived.add(segment.path)
            return True

    def forget(self, segment: Segment) -> None:
        """Forget a deleted segment."""
        self._archived.discard(segment.path)
        self._failed.pop(segment.path, None)


class Housekeeper:
    """Releases values beyond the retention or the caps."""

    def __init__(
        self,
        store: MetricStore,
        log: WriteAheadLog,
        *,
        retention: int,
        memory_cap: int = 0,
        disk_cap: int = 0,
        archive: str = "",
    ) -> None:
        """Set retention in seconds, caps in bytes (0: none), and the archive's directory."""
        self.released = 0
        """Number of released buffers."""
        self.unarchived = 0
        """Number of segments that the disk cap deleted without archiving."""
        self.archive = SegmentArchive(archive)
        self._store = store
        self._log = log
        self._retention = retention
        self._memory_cap = memory_cap
        self._disk_cap = disk_cap

    def retain(self, spared: frozenset[tuple[str, str]] = frozenset()) -> int:
        """Release values older than the retention, except for spared nodes.

        Return the number of released buffers.
        """
        limit = int(self._store.now()) - self._retention
        released = self._store.release_before(limit, spared)
        self.released += released
        if released:
            logger.info("released %d buffers that end before %d", released, limit)
        return released

    def limit_memory(self) -> int:
        """Release the oldest values while all values exceed the memory cap.

        If releasing is not enough, refuse new series: a large number of names must not use up
        memory. Return the number of released buffers.
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
                "the newest values exceed the memory cap of %d bytes: new series are refused",
                self._memory_cap,
            )  # fmt: skip
        if released:
            self.released += released
            logger.warning(
                "values exceeded the memory cap of %d bytes: released %d buffers",
                self._memory_cap, released,
            )  # fmt: skip
        return released

    def old_segments(self, *, is_spared: bool = False) -> list[Segment]:
        """Return the log segments without values within the retention.

        is_spared: true if some nodes keep older values. Then segments that the next start reads are
        kept.
        """
        limit = int(self._store.now()) - self._retention * (REPLAYED if is_spared else 1)
        return [segment for segment in self._log.closed if segment.newest < limit]

    def check_log(self) -> None:
        """Go on in a new segment if the last one was removed: it would be lost with what comes."""
        if not self._log.check_file():
            logger.error(
                "log: the newest segment was removed by somebody: its values are in memory only,"
                " and lost at the next start"
            )

    async def remove_old(self, *, is_spared: bool = False) -> None:
        """Archive and delete the log segments without values within the retention."""
        for segment in self.old_segments(is_spared=is_spared):
            if await self.archive.add(segment):
                self._remove(segment)

    async def limit_disk(self) -> None:
        """Delete the oldest segments while the log is larger than its cap. Archive them before.

        A segment whose archiving fails is also deleted, with an error in the log, because other
        programs need the disk.
        """
        log, cap = self._log, self._disk_cap
        if not cap:
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
                    "the log exceeds its cap of %d bytes: deleting %s, values until %d",
                    cap, oldest.path, oldest.newest,
                )  # fmt: skip
            else:
                self.unarchived += 1
                logger.error(
                    "the log exceeds its cap of %d bytes: deleting %s, values until %d,"
                    " without archiving them in %s: they are lost", cap, oldest.path,
                    oldest.newest, self.archive.directory,
                )  # fmt: skip
            if not self._remove(oldest):
                return

    def _remove(self, segment: Segment) -> bool:
        """Delete a segment. Return whether it is deleted."""
        if segment in self._log.closed:
            try:
                self._log.remove(segment)
            except OSError as error:
                logger.error("log %s can't be deleted: %s", segment.path, error.strerror)
                return False
            self.archive.forget(segment)
        return True


def find_used_nodes(url: str, time: int) -> frozenset[tuple[str, str]] | None:
    """Return cluster and name of each node with a running job that started before a time.

    Return None if cc-backend does not answer.
    """
    if not url:
        return frozenset()
    # Few stores need this at their start.
    import ssl
    from http.client import responses

    from ccagent.net.http_client import HTTP_ERRORS, HttpConnection
    from ccagent.net.urls import server_of_url, split_url

    place = f"{url.rstrip('/')}/api/jobs/used_nodes?ts={time}"
    try:
        target = split_url(place)
        context = ssl.create_default_context() if target.scheme == "https" else None
        connection = HttpConnection(server_of_url(target), context, _ASK_SECONDS, largest=_LARGEST)
        try:
            answer = connection.get(f"{target.path}?{target.query}", {})
        except HTTP_ERRORS as error:
            raise NotHereError(connection.explain(error)) from error
        finally:
            connection.close()
        if answer.status != 200:
            raise NotHereError(f"status {answer.status} {responses.get(answer.status, '')}")
        found = msgspec.json.decode(answer.body, type=dict[str, list[str]])
    except (CcagentError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        logger.error("%s: %s; releasing no values now", place, error)
        return None
    return frozenset((cluster, node) for cluster, nodes in found.items() for node in nodes)
