"""Queries by job, and footprints of ended jobs."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import structs

from ccagent.stores.metrics.query_request import BadRequestError, SeriesQuery
from ccagent.stores.metrics.reading import UnreadableSeriesError, read_together

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from numpy.typing import NDArray

    from ccagent.stores.metrics.job_table import JobTable, StoredJob
    from ccagent.stores.metrics.levels import StoreLevel
    from ccagent.stores.metrics.query_request import QueryRequest
    from ccagent.stores.metrics.store import MetricStore

_MOST_NODES = 1000
"""Maximum number of nodes in a list of a job's parts."""

SETTLING = 120
"""Seconds after a job's end until its last values have arrived."""


def expand_job(request: QueryRequest, job: str, table: JobTable, now: int) -> QueryRequest:
    """Return the request with the nodes and times of the latest run of a job.

    A query without a host is repeated for each node. `from` and `to` are optional. Raise
    BadRequestError for an unknown job.
    """
    found = table.find(request.cluster, job)
    if not found:
        raise BadRequestError(f"no job called: {job}")
    run = found[-1]
    stop = now if run.stop is None else run.stop
    queries = [
        structs.replace(query, host=node)
        for query in request.queries or ()
        for node in ((query.host,) if query.host else run.nodes)
    ]
    queries += [
        query
        for metric in request.for_all_nodes or ()
        for query in _queries_of_nodes(metric, run.nodes)
    ]
    return structs.replace(
        request,
        cluster=run.cluster,
        start=max(request.start, run.start),
        end=min(request.end, stop) if request.end else stop,
        queries=queries,
        for_all_nodes=None,
    )


def _queries_of_nodes(metric: str, nodes: tuple[str, ...]) -> list[SeriesQuery]:
    return [SeriesQuery(metric=metric, host=node) for node in nodes]


async def compute_footprint(store: MetricStore, job: StoredJob) -> dict[str, Any]:
    """Return average, minimum and maximum of each metric over the nodes of an ended job."""
    found: dict[str, _Extent] = {}
    for node in job.nodes:
        level = store.root.find((job.cluster, node))
        if level is None or job.stop is None:
            continue
        for metric in {name for below in level.walk() for name in below.series}:
            values = _read(store, level, metric, (job.start, job.stop))
            if values is not None:
                found.setdefault(metric, _Extent()).add(values)
        await asyncio.sleep(0)  # yield to other requests
    return {
        metric: {"avg": one.total / one.count, "min": one.least, "max": one.most}
        for metric, one in sorted(found.items())
    }


class _Extent:
    """Statistics of a metric of a job."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.least, self.most = math.inf, -math.inf

    def add(self, values: NDArray[np.float64]) -> None:
        self.count += len(values)
        self.total += float(values.sum())
        self.least = min(self.least, float(values.min()))
        self.most = max(self.most, float(values.max()))


def _read(
    store: MetricStore, level: StoreLevel, metric: str, times: tuple[int, int]
) -> NDArray[np.float64] | None:
    """Return the values of a node without missing values; None if there are none."""
    known = store.catalogue.get(metric)
    if known is None:
        return None
    try:
        found = read_together(list(level.find_series(metric)), known, times)
    except UnreadableSeriesError:
        return None
    if found is None:
        return None
    values = found.values[~np.isnan(found.values)]
    return values if values.size else None


class FootprintKeeper:
    """Computes footprints some time after the ends of jobs."""

    def __init__(
        self,
        store: MetricStore,
        table: JobTable,
        ended: list[StoredJob],
        read: Callable[[StoredJob], Awaitable[MetricStore]] | None = None,
    ) -> None:
        """Set the store. read: returns the values of a job's nodes; None: use `store`."""
        self._store = store
        self._table = table
        self._ended = ended
        self._read = read

    async def keep(self) -> int:
        """Store the footprints of jobs that ended long enough ago. Return their number.

        An exception leaves its job and the following jobs for the next call.
        """
        limit = int(self._store.now()) - SETTLING
        due = [job for job in self._ended if (job.stop or 0) <= limit]
        for job in due:
            store = self._store if self._read is None else await self._read(job)
            self._table.keep_footprint(job, await compute_footprint(store, job))
            self._ended.remove(job)
        return len(due)


def describe_jobs(jobs: list[StoredJob], store: MetricStore | None = None) -> bytes:
    """Return jobs in JSON. store: if given, the jobs' parts by node are added."""
    found = [job._asdict() for job in jobs]
    if store is not None:
        for one, job in zip(found, jobs, strict=True):
            one["parts"] = _name_parts(store, job)
    return msgspec.json.encode(found) + b"\n"


def _name_parts(store: MetricStore, job: StoredJob) -> dict[str, list[str]]:
    """Return the names of a job's parts by node: mounts, network layers."""
    levels = {
        node: store.root.find((job.cluster, node, f"job{job.job}"))
        for node in job.nodes[:_MOST_NODES]
    }
    return {node: list(level.children) for node, level in levels.items() if level is not None}
