"""Archiving of log segments by a separate program that writes Parquet, and queries of both.

The program reads a segment of the log. The store therefore loads no Parquet library.
"""

from __future__ import annotations

import asyncio
import os
from time import monotonic
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ccagent.errors import ProgramError
from ccagent.log import logger, printable
from ccagent.stores.metrics.archive_reader import ArchiveAnswer, ArchivedValues, ArchiveRequest
from ccagent.stores.metrics.checkpoint_levels import (
    CheckpointLevel,
    collect_level,
    make_series,
    restore_level,
)
from ccagent.stores.metrics.query_request import BadRequestError
from ccagent.stores.metrics.store import MetricStore
from ccagent.stores.process import run_program

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.stores.metrics.log_writer import Segment
    from ccagent.stores.metrics.query_answers import HealthRequest
    from ccagent.stores.metrics.query_request import QueryRequest, TableRequest


_WRITE_SECONDS = 600.0
"""Maximum duration for a segment. During this time the log may exceed its cap."""

_AGAIN_AFTER = 60.0
"""Seconds until a failed segment is tried again."""


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


_AT_ONCE = 2
_READ_SECONDS = 30.0
_SERIES_AT_ONCE = 100
_LONGEST_GAP = 10**7
"""Maximum number of steps between the first and the last value of a series."""


class ArchiveQueries:
    """Reads archived values with the program `archive_reader`."""

    def __init__(self, store: MetricStore, directory: str, retention: int, most: int) -> None:
        """Set the parts. retention: in s. most: maximum number of values of a request."""
        self._store = store
        self._directory = directory
        self._retention = retention
        self._most = most
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def is_wanted(self, start: int, end: int) -> bool:
        """Return whether a range starts before the values in memory."""
        return start < min(end, int(self._store.now()) - self._retention)

    async def read_queries(self, request: QueryRequest) -> MetricStore:
        """Return a store with the values of a request. Raise the exceptions of `_read`."""
        queries = request.queries or []
        hosts = set[str]() if request.for_all_nodes else {query.host for query in queries}
        metrics = {query.metric for query in queries} | set(request.for_all_nodes or ())
        return await self._read(request.cluster, request.start, request.end, hosts, metrics)

    async def read_table(self, request: TableRequest) -> MetricStore:
        """Return a store with the values of a version 2 request. Raise as `read_queries`."""
        hosts = request.hosts or ()
        return await self._read(request.cluster, request.start, request.end, hosts, request.metrics)

    async def read_health(self, request: HealthRequest) -> MetricStore | None:
        """Return None, because the newest values are in memory."""
        del request
        return None

    async def _read(
        self, cluster: str, start: int, end: int, hosts: Iterable[str], metrics: Iterable[str]
    ) -> MetricStore:
        """Return a store with archived values, overwritten by the values in memory.

        Raise BadRequestError, ProgramError, OSError, ValueError, TimeoutError.
        """
        most = self._most
        wanted = ArchiveRequest(cluster, start, end, sorted(hosts), sorted(metrics), most)
        text = msgspec.msgpack.encode(wanted)
        async with self._turns:
            found = await run_program(
                "archive_reader", self._directory, text=text, seconds=_READ_SECONDS
            )
            answer = msgspec.msgpack.decode(found, type=ArchiveAnswer)
            if answer.is_too_large:
                raise BadRequestError(
                    f"the archive has more than {most} values of these series; request less"
                )
            for one in answer.damaged:
                logger.error("archive %s; its values are missing", printable(one))
            return await self._combine(wanted, answer.series)

    async def _combine(
        self, request: ArchiveRequest, archived: list[ArchivedValues]
    ) -> MetricStore:
        """Merge archived values with values in memory. Yield to the event loop in between."""
        store = MetricStore(self._store.catalogue, self._store.now)
        for number, one in enumerate(archived):
            _restore(store, request.cluster, one)
            if number % _SERIES_AT_ONCE == 0:
                await asyncio.sleep(0)
        cluster = self._store.root.children.get(request.cluster)
        nodes = dict(cluster.children) if cluster is not None else {}
        metrics = frozenset(request.metrics)
        for host in request.hosts or nodes:
            if host in nodes:
                kept = collect_level(nodes[host], request.start, request.end, metrics)
                restore_level(store, (request.cluster, host), kept)
                await asyncio.sleep(0)
        return store


def _restore(store: MetricStore, cluster: str, one: ArchivedValues) -> None:
    """Add the values of an archived series. Skip series that no store can have written."""
    times, values = np.frombuffer(one.times, np.int64), np.frombuffer(one.values, np.float32)
    first = int(times.min())
    if one.frequency <= 0 or int(times.max()) - first > one.frequency * _LONGEST_GAP:
        return
    row = np.full((int(times.max()) - first) // one.frequency + 1, np.nan)
    row[(times - first) // one.frequency] = values
    level = top = CheckpointLevel()
    for name in one.levels:
        level.children[name] = CheckpointLevel()
        level = level.children[name]
    level.series[one.metric] = make_series(one.frequency, first, row)
    restore_level(store, (cluster, one.host), top)
