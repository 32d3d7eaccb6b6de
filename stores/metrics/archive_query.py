"""Queries that begin before the retention: archived values and those in memory together."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ccagent.log import logger, printable
from ccagent.stores.metrics.archive_reader import ArchivedValues, ArchiveRequest
from ccagent.stores.metrics.checkpoint_levels import (
    CheckpointLevel,
    collect_level,
    make_series,
    restore_level,
)
from ccagent.stores.metrics.query import QueryLimits, answer
from ccagent.stores.metrics.query_request import BadRequestError
from ccagent.stores.metrics.responses import StoreResponse, fail
from ccagent.stores.metrics.store import MetricStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.stores.metrics.query_request import QueryRequest

_PROGRAM = "ccagent.stores.metrics.archive_reader"
_AT_ONCE = 2
_SECONDS = 30.0


class ArchiveQueries:
    """Answers queries with the help of a program that reads the archive."""

    def __init__(
        self, store: MetricStore, directory: str, retention: int, limits: QueryLimits
    ) -> None:
        self._store = store
        self._directory = directory
        self._retention = retention
        self._limits = limits
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def is_wanted(self, request: QueryRequest) -> bool:
        """Return whether a request begins before what is in memory."""
        return request.start < min(request.end, int(self._store.now()) - self._retention)

    def start(self, request: QueryRequest, done: Callable[[StoreResponse], None]) -> None:
        """Answer a request when the archive has been read."""
        task = asyncio.get_running_loop().create_task(self._answer(request, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: QueryRequest, done: Callable[[StoreResponse], None]) -> None:
        queries = request.queries or []
        wanted = ArchiveRequest(
            request.cluster,
            request.start,
            request.end,
            [] if request.for_all_nodes else list({query.host for query in queries}),
            list({query.metric for query in queries} | set(request.for_all_nodes or ())),
        )
        try:
            async with self._turns:
                archived = await asyncio.wait_for(self._read(wanted), _SECONDS)
            store = self._combine(wanted, archived)
            done(StoreResponse(200, b"".join(answer(store, request, self._limits))))
        except BadRequestError as error:
            done(fail(400, str(error)))
        except (OSError, ValueError, TimeoutError) as error:
            logger.error("archive %s: %s", self._directory, error or "it takes too long")
            done(fail(503, "the archive can't be read; the store's log says more"))
        except Exception:  # noqa: BLE001 - the client must get an answer
            logger.exception("archive %s: a query failed", self._directory)
            done(fail(500, "an error in the store; its log says more"))

    async def _read(self, request: ArchiveRequest) -> list[ArchivedValues]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", _PROGRAM, self._directory,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            found, said = await process.communicate(msgspec.json.encode(request))
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode:
            last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise ValueError(printable(last))
        return msgspec.json.decode(found, type=list[ArchivedValues])

    def _combine(self, request: ArchiveRequest, archived: list[ArchivedValues]) -> MetricStore:
        """Return a store with the archived values, and over them those in memory."""
        store = MetricStore(self._store.catalogue, self._store.now)
        for one in archived:
            first = min(one.times)
            row = np.full((max(one.times) - first) // one.frequency + 1, np.nan)
            row[(np.array(one.times) - first) // one.frequency] = one.values
            level = top = CheckpointLevel()
            if one.level:
                level = top.children[one.level] = CheckpointLevel()
            level.series[one.metric] = make_series(one.frequency, first, row)
            restore_level(store, (request.cluster, one.host), top)
        cluster = self._store.root.children.get(request.cluster)
        nodes = cluster.children if cluster is not None else {}
        for host in request.hosts or list(nodes):
            if host in nodes:
                kept = collect_level(nodes[host], request.start, request.end)
                restore_level(store, (request.cluster, host), kept)
        return store
