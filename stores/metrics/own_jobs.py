"""Restrictions for tokens of the role `user`: the user's own jobs, and nodes without their jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from ccagent.stores.metrics.job_table import JobTable
    from ccagent.stores.metrics.levels import StoreLevel
    from ccagent.stores.metrics.query_request import QueryRequest
    from ccagent.stores.metrics.store import MetricStore

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
