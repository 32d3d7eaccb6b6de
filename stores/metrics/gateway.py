"""The store's interface in front of an external engine, VictoriaMetrics, and its process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from array import array
from math import isnan
from typing import TYPE_CHECKING, Any

from ccagent.config.duration import parse_size
from ccagent.log import logger
from ccagent.service.instance import Lock
from ccagent.service.private_directories import make_directory
from ccagent.stores.budgets import format_label
from ccagent.stores.metrics.api import StoreApi
from ccagent.stores.metrics.commit import EngineCommit
from ccagent.stores.metrics.ingest import LineIngest
from ccagent.stores.metrics.job_events import JobEvents
from ccagent.stores.metrics.job_queries import FootprintKeeper
from ccagent.stores.metrics.job_table import JOBS_KEPT, TABLE_ERRORS, find_ended_jobs
from ccagent.stores.metrics.line_keys import level_tags
from ccagent.stores.metrics.listening import ListeningServer, open_jobs
from ccagent.stores.metrics.own_metrics import describe_gateway
from ccagent.stores.metrics.responses import StoreResponse, fail
from ccagent.stores.metrics.series_limits import PartLimits
from ccagent.stores.metrics.store import MetricStore
from ccagent.stores.metrics.victoria import VictoriaEngine

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from ccagent.stores.metrics.groups import SeriesGroup
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.stores.metrics.known_keys import ValuePiece
    from ccagent.stores.metrics.query_answers import HealthRequest
    from ccagent.stores.metrics.query_request import QueryRequest, SeriesQuery, TableRequest
    from ccagent.stores.metrics.settings import StoreSettings


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


_PLAIN = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_MILLISECONDS = 1000


def labels(path: tuple[str, ...]) -> dict[str, str]:
    """Return the labels of a level."""
    return {name.replace("-", "_"): tag for name, tag in level_tags(path).items()}


def series_text(path: tuple[str, ...], metric: str) -> str:
    """Return a series in Prometheus' text format; empty for names it does not permit."""
    if _PLAIN.fullmatch(metric) is None:
        return ""
    pairs = [format_label(name, tag) for name, tag in labels(path).items()]
    return f"{metric}{{{','.join(pairs)}}} "


class EngineIngest(LineIngest):
    """Passes values on to an engine. Its MetricStore contains the names of series, no values."""

    def __init__(self, names: MetricStore, commit: EngineCommit, **more: Any) -> None:
        super().__init__(names, None, **more)
        self._commit = commit
        self._texts: dict[tuple[int, int], str] = {}
        """Text of a series by group number and column."""

    def _put(self, pieces: list[ValuePiece]) -> None:
        texts = self._texts
        found: list[str] = []
        for group, moment, first, places, packed in pieces:
            values = array("d", packed)
            columns = array("q", places) if places else range(first, first + len(values))
            for column, value in zip(columns, values, strict=True):
                if isnan(value):  # a gap
                    continue
                text = texts.get((group.number, column))
                if text is None:
                    level, metric = group.levels[column], group.metrics[column]
                    text = texts[group.number, column] = series_text(level.path, metric)
                if text:
                    found.append(f"{text}{value!r} {moment}000\n")
                else:
                    self._put_json(group, column, moment, value)
        if found:
            self._commit.add("".join(found).encode())

    def _put_json(self, group: SeriesGroup, column: int, time: int, value: float) -> None:
        level, metric = group.levels[column], group.metrics[column]
        line = {
            "metric": {"__name__": metric, **labels(level.path)},
            "values": [value],
            "timestamps": [time * _MILLISECONDS],
        }
        self._commit.add_json(json.dumps(line).encode())


class GatewayServer(ListeningServer):
    """A server without values. Several gateways can share one engine.

    With a directory `data` each gateway has a separate table of jobs, with `jobs-database` all
    gateways have one.
    """

    def __init__(self, settings: StoreSettings) -> None:
        """Open the table of jobs. Raise ConfigurationError, LockedError, OSError."""
        super().__init__(settings)
        engine = VictoriaEngine(settings.engine_url)
        names = MetricStore(settings.catalogue(), time.time)
        source = EngineSource(engine, names, settings.limits.values)
        self._lock: Lock | None = None
        self._jobs = self._events = self._footprints = None
        if settings.data:
            make_directory(settings.data)
            self._lock = Lock(os.path.join(settings.data, "lock"), "data")
        if settings.data or settings.jobs_database:
            self._jobs = open_jobs(settings)
            self._events = JobEvents(self._jobs)
            since = int(time.time() - settings.retention.seconds)
            self._events.ended += find_ended_jobs(self._jobs, since)
            self._footprints = FootprintKeeper(
                names, self._jobs, self._events.ended, source.read_job
            )
        self.commit = EngineCommit(engine)
        self.ingest = EngineIngest(
            names,
            self.commit,
            future=int(settings.limits.future.seconds),
            past=settings.oldest(),
            is_strict=settings.is_reference,
            series=self.limit_series(names),
            others=self._events.take if self._events else None,
            # Names of ended jobs are kept, so the number of parts of a node only grows.
            parts=PartLimits(names, of_node=settings.limits.series),
        )
        self.api = GatewayApi(
            names,
            self.ingest,
            self.commit,
            verifier=self.verifier,
            limits=self.query_limits,
            largest_body=parse_size(settings.limits.body),
            bodies=parse_size(settings.limits.bodies),
            describe=lambda: describe_gateway(names, self.ingest, self.commit, self.connections),
            jobs=self._jobs,
            events=self._events,
            source=source,
        )
        self.subscribe(self.ingest, self.commit)

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return additional coroutines to run."""
        if self._jobs is None:
            return []
        return [self.repeat(self.retention_period(), self._remove_old_jobs)]

    async def tick(self) -> None:
        """Store footprints of ended jobs."""
        if self._footprints is not None and self._events is not None:
            await self.keep_footprints(self._events, self._footprints)

    async def _remove_old_jobs(self) -> None:
        """Remove old jobs from the table. Other gateways may do the same."""
        if self._jobs is None:
            return
        try:
            await self._jobs.remove_before(int(time.time()) - JOBS_KEPT)
        except TABLE_ERRORS as error:
            logger.error("table of jobs: %s; old jobs are removed later", error)

    async def end(self) -> None:
        """Wait for the engine, and close the table of jobs."""
        await self.commit.close()
        if self._events is not None:
            self._events.close()
        if self._jobs is not None:
            self._jobs.close()
        if self._lock is not None:
            self._lock.release()
