"""The store's HTTP interface in front of an external engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ccagent.stores.metrics.api import StoreApi
from ccagent.stores.metrics.responses import StoreResponse, fail

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.stores.metrics.health import HealthRequest
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.stores.metrics.query_request import QueryRequest, SeriesQuery
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.stores.metrics.table_request import TableRequest
    from ccagent.stores.metrics.victoria import VictoriaEngine

_RECENT = 3600
_BEFORE = 3600
"""Seconds before a query's range that are also searched, to find the steps of a series."""

_REFUSALS = {
    "free": "VictoriaMetrics releases values by its own retention, and deletes whole series only",
    "debug": "VictoriaMetrics has no buffers; its /api/v1/series lists what it keeps",
}


class GatewayApi(StoreApi):
    """Passes values on to an engine, and answers queries from the engine."""

    def _answer(self, name: str, url: bytes, body: bytes, owner: str | None) -> StoreResponse:
        if name in _REFUSALS:
            return fail(501, f"{name}: not with the engine victoria-metrics: {_REFUSALS[name]}")
        return super()._answer(name, url, body, owner)


class EngineSource:
    """Reads the values of requests from the engine, in threads."""

    def __init__(self, engine: VictoriaEngine, names: MetricStore, most: int) -> None:
        """Set the engine and a store with the catalogue. most: values per response."""
        self._engine = engine
        self._names = names
        self._most = most

    def is_wanted(self, start: int, end: int) -> bool:
        """Return True, because no values are in memory."""
        del start, end
        return True

    async def read_queries(self, request: QueryRequest) -> MetricStore:
        """Return a store with the values of a request. Raise EngineError, BadRequestError."""
        queries = request.queries or []
        metrics = {query.metric for query in queries} | set(request.for_all_nodes or ())
        nodes = None if request.for_all_nodes else {query.host for query in queries}
        times = request.start - _BEFORE, request.end
        store = await self._read(request.cluster, nodes, metrics, times)
        later = [query for query in queries if not _has_series(store, request.cluster, query)]
        if later:
            await asyncio.to_thread(
                self._engine.add_first_values, store, request.cluster,
                ({query.host for query in later}, {query.metric for query in later}), request.end,
            )  # fmt: skip
        return store

    async def read_table(self, request: TableRequest) -> MetricStore:
        """Return a store with the values of a version 2 request. Raise as `read_queries`."""
        times = request.start - _BEFORE, request.end
        return await self._read(request.cluster, request.hosts, request.metrics, times)

    async def read_health(self, request: HealthRequest) -> MetricStore | None:
        """Return a store with the newest values of nodes. Raise as `read_queries`."""
        now = int(self._names.now())
        times = now - _RECENT, now + _RECENT
        return await self._read(
            request.cluster, request.nodes or (), request.metric_names or (), times
        )

    async def read_job(self, job: StoredJob) -> MetricStore:
        """Return a store with all values of a job's nodes. Raise as `read_queries`."""
        end = int(self._names.now()) if job.stop is None else job.stop
        return await self._read(job.cluster, job.nodes, None, (job.start, end))

    async def _read(
        self,
        cluster: str,
        nodes: Iterable[str] | None,
        metrics: Iterable[str] | None,
        times: tuple[int, int],
    ) -> MetricStore:
        names = self._names
        return await asyncio.to_thread(
            self._engine.read,
            names.catalogue, cluster, (nodes, metrics), times, names.now, most=self._most,
        )  # fmt: skip


def _has_series(store: MetricStore, cluster: str, query: SeriesQuery) -> bool:
    """Return whether all selected levels have values of the metric."""
    root = store.root
    return all(
        any(True for level in root.select(selector) for _ in level.find_series(query.metric))
        for selector in query.selectors(cluster)
    )
