"""Queries that are asked by job, and the footprints of ended jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import structs

from ccagent.stores.metrics.query_request import BadRequestError, SeriesQuery
from ccagent.stores.metrics.reading import UnreadableSeriesError, read_together

if TYPE_CHECKING:
    from ccagent.stores.metrics.job_table import JobTable, StoredJob
    from ccagent.stores.metrics.query_request import QueryRequest
    from ccagent.stores.metrics.store import MetricStore

SETTLING = 120
"""Seconds after a job's end in which its last values arrive."""


def expand_job(request: QueryRequest, job: str, table: JobTable, now: int) -> QueryRequest:
    """Return the request for the nodes and times of the latest run of a job.

    Queries without a host are asked of each node; `from` and `to` may be left out. Raises
    BadRequestError if the job is unknown.
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


def compute_footprint(store: MetricStore, job: StoredJob) -> dict[str, Any]:
    """Return average, minimum and maximum of each metric over the nodes of an ended job."""
    found: dict[str, list[Any]] = {}
    for node in job.nodes:
        level = store.root.find((job.cluster, node))
        if level is None or job.stop is None:
            continue
        for metric in {name for below in level.walk() for name in below.series}:
            known = store.catalogue.get(metric)
            if known is None:
                continue
            try:
                values = read_together(list(level.find_series(metric)), known, job.start, job.stop)
            except UnreadableSeriesError:
                continue
            if values is not None and not np.isnan(values.values).all():
                found.setdefault(metric, []).append(values.values)
    footprint: dict[str, Any] = {}
    for metric, rows in sorted(found.items()):
        every = np.concatenate(rows)
        footprint[metric] = {
            "avg": float(np.nanmean(every)),
            "min": float(np.nanmin(every)),
            "max": float(np.nanmax(every)),
        }
    return footprint


class FootprintKeeper:
    """Computes footprints some time after the ends of jobs."""

    def __init__(self, store: MetricStore, table: JobTable, ended: list[StoredJob]) -> None:
        self._store = store
        self._table = table
        self._ended = ended

    def keep(self) -> int:
        """Keep the footprints of jobs that ended long enough ago; return their number."""
        limit = int(self._store.now()) - SETTLING
        due = [job for job in self._ended if (job.stop or 0) <= limit]
        self._ended[:] = [job for job in self._ended if (job.stop or 0) > limit]
        for job in due:
            self._table.keep_footprint(job, compute_footprint(self._store, job))
        return len(due)


def describe_jobs(jobs: list[StoredJob]) -> bytes:
    """Return jobs in JSON."""
    return msgspec.json.encode([job._asdict() for job in jobs]) + b"\n"
