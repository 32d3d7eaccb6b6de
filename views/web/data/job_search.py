"""Search in the store's table of jobs, by time, text, state and user, in pages."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.errors import CcagentError
from ccagent.stores.metrics.job_details import details_of_row
from ccagent.stores.metrics.job_table import StoredJob, WaitingJob, job_of_row

if TYPE_CHECKING:
    from collections.abc import Sequence


_COLUMNS = "cluster, job, user, state, start, stop, nodes, footprint, details"
_INDEXES = (
    "create index if not exists jobs_by_start on jobs (cluster, start)",
    "create index if not exists jobs_running on jobs (cluster) where stop is null",
)
_SECONDS = 3.0
_STEPS = 10_000
"""SQLite instructions between checks of the time limit."""

MOST_JOBS = 5000
_MOST_PARTITIONS = 50
_FAR = 2.0**53
_RAN = "coalesce(stop, ?) - start between ? and ?"
_HAS_NODE = "exists (select 1 from json_each(jobs.nodes) where value = ?)"
_HAS_TEXT = (
    "(job = ? or user = ? or json_extract(details, '$.account') = ?"
    f" or json_extract(details, '$.name') like ? escape '\\' or {_HAS_NODE})"
)


class JobSearchError(CcagentError):
    """The table of jobs can't be searched. The message is for the viewer."""


class JobFilter(NamedTuple):
    """A filter of jobs. text: number, user, name, account or node.

    user: None: all users; "": no jobs. start, end: jobs that ran in this time. state: in lower
    case; `running` or a final state. owner, account, partition, node: exact names; "": any.
    seconds, nodes: ranges of run time and of the number of nodes, inclusive. order: a key of
    ORDERS, with `-` the largest first. now: end of running jobs.
    """

    cluster: str
    start: int = 0
    end: int = 2**53
    text: str = ""
    state: str = ""
    user: str | None = None
    node: str = ""
    owner: str = ""
    account: str = ""
    partition: str = ""
    seconds: tuple[float, float] = (0, _FAR)
    nodes: tuple[float, float] = (0, _FAR)
    order: str = "-start"
    now: int = 0


ORDERS = {
    "start": ("start",),
    "job": ("length(job)", "job"),
    "user": ("user",),
    "state": ("state",),
    "ran": ("coalesce(stop, ?) - start",),
    "size": ("coalesce(json_extract(details, '$.cores'), 0)",),
}
"""SQL of the orders of jobs; a placeholder is the end of running jobs."""


class RunningUse(NamedTuple):
    """Resources of the running jobs of a user and account; 0: unknown. memory: B."""

    user: str
    account: str
    jobs: int
    cores: int
    memory: int
    gpus: int


class PartitionUse(NamedTuple):
    """The jobs of a partition: running, waiting, and their cores and GPUs; "": unknown partition.

    waiting_cores, waiting_gpus: asked for.
    """

    name: str
    jobs: int
    cores: int
    gpus: int
    waiting: int = 0
    waiting_cores: int = 0
    waiting_gpus: int = 0


class JobSearch:
    """A search over the table of jobs with a separate connection, which does not block writes.

    All searches raise JobSearchError if they fail or take too long.
    """

    def __init__(self, path: str) -> None:
        """Open the table. Raise sqlite3.Error if that fails."""
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        self._until = 0.0
        self._database.execute("pragma busy_timeout = 2000")
        for index in _INDEXES:
            self._database.execute(index)
        self._database.execute("pragma query_only = on")
        self._database.set_progress_handler(self._is_late, _STEPS)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    async def find(self, wanted: JobFilter, limit: int = 50, skip: int = 0) -> list[StoredJob]:
        """Return jobs, latest start first."""
        where, values = _condition(wanted)
        turn = " desc" if wanted.order.startswith("-") else ""
        columns = [f"{one}{turn}" for one in ORDERS[wanted.order.removeprefix("-")]]
        order = ", ".join(dict.fromkeys([*columns, "start desc", "job desc"]))
        values += [wanted.now] * order.count("?")
        query = (
            f"select {_COLUMNS} from jobs where {where}"  # noqa: S608 - texts are bound
            f" order by {order} limit ? offset ?"
        )
        rows = await self._ask(query, *values, min(limit, MOST_JOBS), skip)
        return [job_of_row(row) for row in rows]

    async def count(self, wanted: JobFilter) -> int:
        """Return the number of jobs."""
        where, values = _condition(wanted)
        query = f"select count(*) from jobs where {where}"  # noqa: S608 - texts are bound
        count: int = (await self._ask(query, *values))[0][0]
        return count

    async def running_use(self, cluster: str) -> list[RunningUse]:
        """Return the resources of running jobs by user and account."""
        sums = ", ".join(
            f"sum(coalesce(json_extract(details, '$.{name}'), 0))"
            for name in ("cores", "memory", "gpus")
        )
        query = (
            "select user, coalesce(json_extract(details, '$.account'), ''), count(*),"  # noqa: S608
            f" {sums} from jobs"
            " where cluster = ? and stop is null group by 1, 2"
        )
        return [RunningUse(*row) for row in await self._ask(query, cluster)]

    async def partitions(self, cluster: str) -> list[PartitionUse]:
        """Return the partitions with running or waiting jobs, most cores first."""
        part = (
            "select coalesce(json_extract(details, '$.partition'), '') part, count(*) n,"
            " sum(coalesce(json_extract(details, '$.cores'), 0)) c,"
            " sum(coalesce(json_extract(details, '$.gpus'), 0)) g"
        )
        query = (
            "select part, sum(n), sum(c), sum(g), sum(wn), sum(wc), sum(wg) from ("  # noqa: S608
            f"select part, n, c, g, 0 wn, 0 wc, 0 wg from ({part} from jobs where cluster = ?"
            f" and stop is null group by 1) union all select part, 0, 0, 0, n, c, g from ({part}"
            " from waiting where cluster = ? group by 1)) group by 1"
            " order by 3 desc, 5 desc, 1 limit ?"
        )
        rows = await self._ask(query, cluster, cluster, _MOST_PARTITIONS)
        return [PartitionUse(*row) for row in rows]

    async def waiting(self, cluster: str, user: str | None, limit: int = 20) -> list[WaitingJob]:
        """Return the jobs that wait longest. user: None: of all users; "": no jobs."""
        query = (
            "select job, user, submitted, details from waiting where cluster = ?"
            " and (? is null or user = ? and user != '') order by submitted, job limit ?"
        )
        rows = await self._ask(query, cluster, user, user, limit)
        return [
            WaitingJob(cluster, job, owner, submitted, details_of_row(details))
            for job, owner, submitted, details in rows
        ]

    async def busy_nodes(self, cluster: str) -> set[str]:
        """Return the nodes with running jobs."""
        query = (
            "select distinct value from jobs, json_each(jobs.nodes)"
            " where cluster = ? and stop is null"
        )
        return {row[0] for row in await self._ask(query, cluster)}

    async def runs(self, cluster: str, job: str) -> list[StoredJob]:
        """Return the runs of a job, earliest first; with an empty cluster, of all clusters."""
        query = (
            f"select {_COLUMNS} from jobs where job = ? and (cluster = ? or ? = '')"  # noqa: S608
            " order by start"
        )
        rows = await self._ask(query, job, cluster, cluster)
        return [job_of_row(row) for row in rows]

    async def clusters(self) -> list[str]:
        """Return the clusters with jobs."""
        query = "select distinct cluster from jobs order by cluster limit 1000"
        return [row[0] for row in await self._ask(query)]

    async def _ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return await asyncio.to_thread(self._ask_now, query, [_known(one) for one in values])

    def _ask_now(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._lock:
            self._until = time.monotonic() + _SECONDS
            try:
                return self._database.execute(query, values).fetchall()
            except (sqlite3.Error, ValueError, OverflowError) as error:
                text = f"the table of jobs can't be read: {error}"
                if "interrupted" in str(error):
                    text = "the search takes too long; choose a shorter time range"
                raise JobSearchError(text) from error

    def _is_late(self) -> bool:
        return time.monotonic() > self._until


def _known(value: object) -> object:
    """Return a value for SQLite: names may contain bytes that are not UTF-8."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _condition(wanted: JobFilter) -> tuple[str, list[object]]:
    """Return an SQL condition with placeholders, and its values."""
    text = wanted.text
    # SQLite's LIKE patterns end at NUL.
    known = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    pattern = "%" + "".join(f"\\{c}" if c in "\\%_" else c for c in known) + "%"
    conditions: list[tuple[bool, str, Sequence[object]]] = [
        (True, "cluster = ? and start < ?", [wanted.cluster, wanted.end]),
        (True, "(stop is null or stop >= ?)", [wanted.start]),
        (wanted.user is not None, "user = ? and user != ''", [wanted.user]),
        (wanted.state == "running", "stop is null", []),
        (wanted.state not in {"", "running"}, "state = ?", [wanted.state]),
        (wanted.owner != "", "user = ?", [wanted.owner]),
        (wanted.account != "", "json_extract(details, '$.account') = ?", [wanted.account]),
        (wanted.partition != "", "json_extract(details, '$.partition') = ?", [wanted.partition]),
        (wanted.seconds != (0, _FAR), _RAN, [wanted.now, *wanted.seconds]),
        (wanted.nodes != (0, _FAR), "json_array_length(nodes) between ? and ?", wanted.nodes),
        (wanted.node != "", _HAS_NODE, [wanted.node]),
        (text != "", _HAS_TEXT, [text, text, text, pattern, text]),
    ]
    chosen = [(condition, values) for is_wanted, condition, values in conditions if is_wanted]
    where = " and ".join(condition for condition, _ in chosen)
    return where, [value for _, values in chosen for value in values]
