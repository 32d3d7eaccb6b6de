"""The same interface in front of an engine that keeps the values elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ccagent.log import logger
from ccagent.stores.metrics.api import StoreApi
from ccagent.stores.metrics.health import check_health, parse_health_request
from ccagent.stores.metrics.query import QueryLimits, answer
from ccagent.stores.metrics.query_request import parse_request
from ccagent.stores.metrics.responses import StoreResponse, complain, fail
from ccagent.stores.metrics.victoria import EngineError, VictoriaEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ccagent.stores.metrics.commit import GroupCommit
    from ccagent.stores.metrics.ingest import LineIngest
    from ccagent.stores.metrics.store import MetricStore

_RECENT = 3600
_BEFORE = 3600
"""Seconds before a query's range in which a series is looked for, so that its steps are known."""

_UNSUPPORTED = {"free", "debug", "job", "jobs"}


class GatewayApi(StoreApi):
    """Passes values on to VictoriaMetrics, and answers with what that has.

    It keeps nothing but the names of series, so that several can run side by side.
    """

    def __init__(
        self,
        engine: VictoriaEngine,
        store: MetricStore,
        ingest: LineIngest,
        commit: GroupCommit,
        **more: Any,
    ) -> None:
        """`store` has the metrics and the names of series, but never values."""
        super().__init__(store, ingest, commit, **more)
        self._engine = engine
        self._general = ingest.general

    def _write(self, url: bytes, body: bytes, done: Callable[[StoreResponse], None]) -> None:
        taken = self._general.decode(body, self._cluster(url))
        result = complain(taken.bad, taken.bad_count, len(taken.points))

        def work() -> StoreResponse:
            self._engine.write(taken.points)
            return result

        self._start(work, done)

    def _respond_otherwise(
        self, name: str, url: bytes, body: bytes, done: Callable[[StoreResponse], None]
    ) -> None:
        if name in _UNSUPPORTED:
            done(fail(501, f"{name}: not with the engine victoria-metrics"))
        elif name == "query":
            self._start(lambda: self._query(body), done)
        elif name == "healthcheck":
            self._start(lambda: self._health(body), done)
        else:
            super()._respond_otherwise(name, url, body, done)

    def _query(self, body: bytes) -> StoreResponse:
        request = parse_request(body)
        queries = request.queries or []
        metrics = {query.metric for query in queries} | set(request.for_all_nodes or ())
        nodes = None if request.for_all_nodes else {query.host for query in queries}
        times = request.start - _BEFORE, request.end
        store = self._read(request.cluster, (nodes, metrics), times)
        return StoreResponse(200, b"".join(answer(store, request, QueryLimits())))

    def _health(self, body: bytes) -> StoreResponse:
        request = parse_health_request(body)
        now = int(self._store.now())
        times = now - _RECENT, now + _RECENT
        store = self._read(request.cluster, (request.nodes, request.metric_names), times)
        return StoreResponse(200, b"".join(check_health(store, request)))

    def _read(self, cluster: str, selected: tuple[Any, Any], times: tuple[int, int]) -> MetricStore:
        store = self._store
        return self._engine.read(store.catalogue, cluster, selected, times, store.now)

    def _start(
        self, work: Callable[[], StoreResponse], done: Callable[[StoreResponse], None]
    ) -> None:
        """Ask the engine in a thread."""
        task = asyncio.get_running_loop().create_task(self._finish(work, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(
        self, work: Callable[[], StoreResponse], done: Callable[[StoreResponse], None]
    ) -> None:
        from ccagent.stores.metrics.query_request import BadRequestError

        try:
            found = await asyncio.to_thread(work)
        except BadRequestError as error:
            found = fail(400, str(error))
        except (EngineError, ValueError, KeyError) as error:
            logger.error("engine: %s", error)
            found = fail(503, f"the engine does not answer: {error}")
        done(found)
