"""Queries by job, footprints of ended jobs, and the jobs that a user may see."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.stores.metrics.blocks import summarize
from ccagent.stores.metrics.job_table import JOBS_KEPT
from ccagent.stores.metrics.query_request import BadRequestError, SeriesQuery
from ccagent.stores.metrics.reading import SeriesValues, read_all
from ccagent.stores.metrics.usage.job_energy import end_of_values

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoreLevel
    from ccagent.stores.metrics.job_table import JobTable, StoredJob
    from ccagent.stores.metrics.query_request import QueryRequest
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.stores.metrics.usage.keeper import UsageKeeper


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
        SeriesQuery(metric=metric, host=node)
        for metric in request.for_all_nodes or ()
        for node in run.nodes
    ]
    return structs.replace(
        request,
        cluster=run.cluster,
        start=max(request.start, run.start),
        end=min(request.end, stop) if request.end else stop,
        queries=queries,
        for_all_nodes=None,
    )


async def compute_footprint(store: MetricStore, job: StoredJob) -> dict[str, Any]:
    """Return average, minimum and maximum of each metric over the nodes of an ended job."""
    found: dict[str, _Extent] = {}
    # A step for each minute since 1970 would take the memory of the machine.
    start = max(job.start, int(store.now()) - JOBS_KEPT)
    for node in job.nodes:
        level = store.root.find((job.cluster, node))
        if level is None or job.stop is None:
            continue
        for metric, summary in _summarize(store, level, (start, job.stop)):
            found.setdefault(metric, _Extent()).add(summary)
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

    def add(self, summary: NDArray[np.float64]) -> None:
        """Add number, sum, minimum and maximum of the values of a node."""
        count, total, least, most = summary.tolist()
        self.count += int(count)
        self.total += total
        self.least, self.most = min(self.least, least), max(self.most, most)


def _summarize(
    store: MetricStore, level: StoreLevel, times: tuple[int, int]
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield the metrics of a node that have values, and their statistics."""
    named = [
        (metric, list(level.find_series(metric)), known)
        for metric in {name for below in level.walk() for name in below.series}
        if (known := store.catalogue.get(metric)) is not None
    ]
    asked = [(series, known) for _, series, known in named]
    for (metric, _, _), found in zip(named, read_all(asked, times, has_values=False), strict=True):
        if isinstance(found, SeriesValues):
            summary = found.summary
            if summary is None:
                summary = summarize(found.values[None])[:, 0]
            if summary[0]:
                yield metric, summary


class FootprintKeeper:
    """Computes footprints some time after the ends of jobs."""

    def __init__(
        self,
        store: MetricStore,
        table: JobTable,
        ended: list[StoredJob],
        read: Callable[[StoredJob], Awaitable[MetricStore]] | None = None,
        usage: UsageKeeper | None = None,
    ) -> None:
        """Set the store. read: returns the values of a job's nodes; None: use `store`.

        usage: gets the energy of each job.
        """
        self._store = store
        self._table = table
        self._ended = ended
        self._read = read
        self._usage = usage

    async def keep(self) -> int:
        """Store the footprints of jobs that ended long enough ago. Return their number.

        A job that can't be computed is logged, and has none until the next start. An exception of
        the table or of the values' source leaves its job for the next call, after the other jobs.
        """
        limit = int(self._store.now()) - SETTLING
        due = deque(job for job in self._ended if (job.stop or 0) <= limit)
        self._ended[:] = [job for job in self._ended if (job.stop or 0) > limit]
        kept = 0
        try:
            while due:
                job = due.popleft()
                try:
                    await self._keep(job)
                except (BadRequestError, ArithmeticError, LookupError, ValueError) as error:
                    logger.error(
                        "job %s of %s has no footprint: %s", job.job, job.cluster, error,
                        exc_info=not isinstance(error, CcagentError),
                    )  # fmt: skip
                except BaseException:
                    due.append(job)
                    raise
                else:
                    kept += 1
        finally:
            self._ended[:0] = due
        return kept

    async def _keep(self, job: StoredJob) -> None:
        """Store the energy and the footprint of a job."""
        store = self._store if self._read is None else await self._read(job)
        if self._usage is not None:
            runs = self._table.find(job.cluster, job.job)
            self._usage.keep(store, job, end_of_values(job, runs, int(store.now())))
        self._table.keep_footprint(job, await compute_footprint(store, job))


def describe_jobs(
    jobs: list[StoredJob], store: MetricStore | None = None, usage: UsageKeeper | None = None
) -> bytes:
    """Return jobs in JSON. store: if given, the jobs' parts by node are added, and their usage."""
    found = [job._asdict() for job in jobs]
    if store is not None:
        for one, job in zip(found, jobs, strict=True):
            one["parts"] = _name_parts(store, job)
            if usage is not None:
                one["usage"] = usage.of_job(store, job, end_of_values(job, jobs, int(store.now())))
                one["currency"] = usage.settings.currency
    return msgspec.json.encode(found) + b"\n"


def _name_parts(store: MetricStore, job: StoredJob) -> dict[str, list[str]]:
    """Return the names of a job's parts by node: mounts, network layers."""
    levels = {
        node: store.root.find((job.cluster, node, f"job{job.job}"))
        for node in job.nodes[:_MOST_NODES]
    }
    return {node: list(level.children) for node, level in levels.items() if level is not None}


_LEVEL = "job"
"""Prefix of the names of jobs' levels."""

_METRICS = "job_"
"""Prefix of the job metrics of ccagent's agents."""


class OthersJobError(CcagentError):
    """A request for jobs of other users. The message is sent to the client."""


def may_read(owner: str | None, user: str) -> bool:
    """Return whether a token's owner may read the jobs of `user`. owner: None for all users."""
    return owner is None or (bool(owner) and owner == user)


class OwnJobs:
    """Finds the jobs of a user. A job number that another user also had is not included."""

    def __init__(self, owner: str, table: JobTable | None) -> None:
        self._owner = owner
        self._table = table
        self._known: dict[tuple[str, str], bool] = {}

    def has(self, cluster: str, job: str) -> bool:
        """Return whether all runs of a job are the user's. cluster empty: runs on all clusters."""
        found = self._known.get((cluster, job))
        if found is None:
            runs = self._table.find(cluster, job) if self._table is not None else []
            found = bool(runs) and all(may_read(self._owner, run.user) for run in runs)
            self._known[cluster, job] = found
        return found


def check_job(request: QueryRequest, job: str, own: OwnJobs) -> None:
    """Raise OthersJobError if a request names a job of another user."""
    if job and not own.has(request.cluster, job):
        raise OthersJobError(f"job {job[:40]}: not one of yours")


def check_queries(request: QueryRequest, own: OwnJobs, store: MetricStore) -> None:
    """Raise OthersJobError if a query would read values of other users' jobs."""
    if request.for_all_nodes is not None:
        raise OthersJobError("the roles of this token do not allow for-all-nodes without a job")
    for query in request.queries or ():
        parts = [f"{query.type}{one}" for one in query.type_ids or () if query.type is not None]
        parts += [
            f"{query.subtype}{one}" for one in query.subtype_ids or () if query.subtype is not None
        ]
        jobs = [one.removeprefix(_LEVEL) for one in parts if one.startswith(_LEVEL)]
        for job in jobs:
            check_job(request, job, own)
        if query.metric.startswith(_METRICS) and not jobs:
            raise OthersJobError(f"{query.metric[:80]}: name jobs of yours: type=job, type-ids")
        for selector in query.selectors(request.cluster):
            for level in store.root.select(selector):
                _check_below(level, query.metric, request.cluster, own)


def _check_below(level: StoreLevel, metric: str, cluster: str, own: OwnJobs) -> None:
    """Raise OthersJobError if a metric's series below a level include other users' jobs."""
    if metric in level.series:
        return
    for name, below in level.children.items():
        if not name.startswith(_LEVEL):
            _check_below(below, metric, cluster, own)
            continue
        is_there = any(metric in one.series for one in below.walk())
        if is_there and not own.has(cluster, name.removeprefix(_LEVEL)):
            raise OthersJobError(f"{metric[:80]}: a metric of jobs, some of others")
