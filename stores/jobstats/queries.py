"""Database queries. They find the ids of series first, then the observations."""

from __future__ import annotations

import difflib
import functools
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from psycopg import sql

from ccagent.stores.jobstats.query_request import QueryError
from ccagent.stores.jobstats.schema import (
    COLUMNS,
    KINDS,
    METADATA,
    file_system_of,
    kind_by_name,
)
from ccagent.stores.jobstats.sums import find_pieces

if TYPE_CHECKING:
    from psycopg import Connection

    from ccagent.stores.jobstats.query_request import JobRequest, TimeRange, TopGroup, TopRequest
    from ccagent.stores.jobstats.schema import TargetKind
    from ccagent.stores.jobstats.sums import TimePiece

_LONGEST_RANKED = timedelta(days=8)
_FILE_SYSTEM = sql.SQL("regexp_replace(m.target, '-[^-]*$', '')")
_MOST_DELTAS = 500_000
"""Maximum number of deltas of a job query, which need some 200 MB of memory."""

KEYS: dict[TopGroup, sql.SQL] = {
    # An entry of a login node has no job; use program and user instead.
    "job": sql.SQL(
        "coalesce(m.job, m.executable || '.' || m.user_id, m.entry_id)"
        " || coalesce('@' || m.cluster, '')"
    ),
    "cluster": sql.SQL("coalesce(m.cluster, '')"),
    "user": sql.SQL("coalesce(m.\"user\", m.user_id::text, '')"),
    "node": sql.SQL("coalesce(m.nodename, '')"),
    "target": sql.SQL("m.target"),
    "executable": sql.SQL("coalesce(m.executable, '')"),
    "account": sql.SQL("coalesce(j.account, '')"),
    "project": sql.SQL("coalesce(j.account, '')"),
    "partition": sql.SQL("coalesce(j.partition, '')"),
}
OF_JOBS = frozenset({"account", "project", "partition"})
FILTERS: dict[str, sql.SQL] = {
    "job": sql.SQL("(m.job = {0} OR m.job = {1} AND coalesce(m.cluster, '') = {2})"),
    "cluster": sql.SQL("m.cluster = {}"),
    "user": sql.SQL('(m."user" = {0} OR m.user_id::text = {0})'),
    "node": sql.SQL("m.nodename = {}"),
    "target": sql.SQL("m.target = {}"),
    "executable": sql.SQL("m.executable = {}"),
    "account": sql.SQL("j.account = {}"),
    "project": sql.SQL("j.account = {}"),
    "partition": sql.SQL("j.partition = {}"),
}
JOBS = sql.SQL("""
    LEFT JOIN (
        SELECT
            job_id, cluster, account, partition, user_name, state,
            row_number() OVER (PARTITION BY job_id ORDER BY reported DESC) = 1 AS is_last
        FROM jobs
    ) j ON j.job_id = m.job_id
        AND CASE WHEN m.cluster IS NULL THEN j.is_last ELSE j.cluster = m.cluster END""")


class TopRow(msgspec.Struct, frozen=True):
    """One group: its name, and the sum of each operation."""

    key: str
    totals: dict[str, int]


class TopAnswer(msgspec.Struct, frozen=True):
    """The groups with the largest sums. note: why there are none, or why their names are empty."""

    begins: str
    ends: str
    by: str
    sort: str
    columns: tuple[str, ...]
    rows: list[TopRow]
    note: str = ""


class JobTotal(msgspec.Struct, frozen=True):
    """I/O of a job by target and operation. rate, peak: per second."""

    target: str
    operation: str
    total: int
    rate: float
    peak: float


class JobRate(msgspec.Struct, frozen=True):
    """A rate per second from `begins` to `ends`."""

    begins: str
    ends: str
    target: str
    operation: str
    rate: float


class JobFileSystem(msgspec.Struct, frozen=True):
    """I/O of a job on a file system.

    metadata: operations of its MDTs. latency: mean time of reads and writes in us; None if servers
    don't report it. bytes_rank, metadata_rank: among all `jobs` on the file system in this time, 1
    is the largest; 0 if the time is too long for a comparison.
    """

    file_system: str
    read_bytes: int
    write_bytes: int
    metadata: int
    latency: float | None
    bytes_rank: int
    metadata_rank: int
    jobs: int


class JobAnswer(msgspec.Struct, frozen=True):
    """I/O of a job in a time range. slurm: the job's data from Slurm."""

    job: str
    begins: str
    ends: str
    slurm: dict[str, str | None]
    totals: list[JobTotal]
    rates: list[JobRate]
    file_systems: list[JobFileSystem] = []


def find_top(connection: Connection[Any], request: TopRequest) -> TopAnswer:
    """Return the groups with the largest sums. Raise QueryError for an unknown operation."""
    for name in request.columns:
        _check_operation(connection, name)
    filters = [
        FILTERS[name].format(value, *split_job(value)) for name, value in request.filters.items()
    ]
    needs_jobs = request.by in OF_JOBS or not OF_JOBS.isdisjoint(request.filters)
    jobs = JOBS if needs_jobs else sql.SQL("")
    wanted: sql.Composable = sql.SQL("")
    if filters:
        wanted = sql.SQL(
            " AND o.time_series_id = ANY (ARRAY("
            "SELECT m.time_series_id FROM metadata m{} WHERE {}))"
        ).format(jobs, sql.SQL(" AND ").join(filters))
    pieces = find_pieces(connection, request.range)
    used = sql.SQL(" UNION ALL ").join(
        _sum_of(kind, request.columns, pieces, wanted) for kind in KINDS
    )
    sums = sql.SQL(", ").join(
        sql.SQL("sum(u.{0}) AS {0}").format(sql.Identifier(f"c{i}"))
        for i in range(len(request.columns))
    )
    order = sql.Identifier(f"c{request.columns.index(request.sort)}")
    query = sql.SQL(
        # Without the array, a join reads the metadata of all series.
        "WITH used AS MATERIALIZED ({}) SELECT {}, {} FROM used u "
        "JOIN (SELECT * FROM metadata WHERE time_series_id = ANY "
        "(ARRAY(SELECT time_series_id FROM used)) OFFSET 0) m "
        "USING (time_series_id){} GROUP BY 1 ORDER BY {} DESC, 1 LIMIT {}"
    ).format(used, KEYS[request.by], sums, jobs, order, request.limit)
    rows = [
        TopRow(key, dict(zip(request.columns, map(int, values), strict=True)))
        for key, *values in connection.execute(query)
    ]
    return TopAnswer(
        request.range.begins.isoformat(),
        request.range.ends.isoformat(),
        request.by,
        request.sort,
        request.columns,
        rows,
        _find_note(connection, has_rows=bool(rows), needs_jobs=needs_jobs),
    )


def find_job(connection: Connection[Any], request: JobRequest) -> JobAnswer | None:
    """Return the I/O of a job; None if the job is unknown. Raise QueryError."""
    job, cluster = split_job(request.job)
    rows = connection.execute(
        "SELECT time_series_id, target, cluster FROM metadata "
        "WHERE job = %(whole)s OR job IS NULL AND entry_id = %(whole)s "
        "OR job = %(job)s AND coalesce(cluster, '') = %(cluster)s",
        {"whole": request.job, "job": job, "cluster": cluster},
    ).fetchall()
    series = {series_id: target for series_id, target, _ in rows}
    clusters = {name for *_, name in rows}
    if len(clusters) > 1:
        known = ", ".join(sorted(f"{job}@{name or ''}" for name in clusters))
        raise QueryError(f"several clusters have a job {request.job}: request one of {known}")
    slurm = _find_slurm(connection, job, next(iter(clusters), cluster))
    if not series and not slurm:
        return None
    begins, ends = request.range
    ids = list(series)
    totals: dict[tuple[str, str], list[Any]] = {}
    rates: dict[tuple[str, str, str, str], float] = {}
    seconds = (ends - begins).total_seconds()
    write = functools.cache(datetime.isoformat)
    deltas = connection.execute(
        "SELECT * FROM series_deltas(%s, %s, %s) LIMIT %s", [ids, begins, ends, _MOST_DELTAS + 1]
    ).fetchall()
    if len(deltas) > _MOST_DELTAS:
        raise QueryError(f"more than {_MOST_DELTAS:,} deltas: request a shorter time")
    for series_id, since, timestamp, operation, delta in deltas:
        target = series[series_id]
        total = totals.setdefault((target, operation), [0, 0.0])
        total[0] += int(delta)
        if since is None:
            continue
        rate = float(delta) / (timestamp - since).total_seconds()
        total[1] = max(total[1], rate)
        if request.step is None:
            key = (write(since), write(timestamp), target, operation)
            rates[key] = rates.get(key, 0.0) + rate
    if request.step is not None:
        for begin, series_id, operation, value in connection.execute(
            "SELECT * FROM interpolated_rates(%s, %s, %s, %s)", [ids, begins, ends, request.step]
        ).fetchall():
            key = (write(begin), write(begin + request.step), series[series_id], operation)
            rates[key] = rates.get(key, 0.0) + float(value)
    return JobAnswer(
        request.job,
        begins.isoformat(),
        ends.isoformat(),
        slurm,
        [
            JobTotal(target, operation, int(total), total / seconds, peak)
            for (target, operation), (total, peak) in sorted(totals.items())
        ],
        [JobRate(*key, rate) for key, rate in sorted(rates.items())],
        _sum_file_systems(
            {key: int(total) for key, (total, _) in totals.items()},
            _find_ranks(connection, request.range, ids),
        ),
    )


def _sum_file_systems(
    totals: dict[tuple[str, str], int], ranks: dict[str, tuple[int, int, int]]
) -> list[JobFileSystem]:
    """Return the sums by file system of totals by target and operation."""
    data: dict[str, defaultdict[str, int]] = {}
    metadata: defaultdict[str, int] = defaultdict(int)
    for (target, operation), total in totals.items():
        name = file_system_of(target)
        sums = data.setdefault(name, defaultdict(int))
        if kind_by_name(target) == "mdt":
            metadata[name] += total if operation in METADATA else 0
        else:
            sums[operation] += total
    return [
        JobFileSystem(
            name,
            sums["read_bytes"],
            sums["write_bytes"],
            metadata[name],
            (sums["read_usecs"] + sums["write_usecs"]) / (sums["read"] + sums["write"])
            if sums["read_usecs"] + sums["write_usecs"] and sums["read"] + sums["write"]
            else None,
            *ranks.get(name, (0, 0, 0)),
        )
        for name, sums in sorted(data.items())
    ]


def _find_ranks(
    connection: Connection[Any], wanted: TimeRange, series: list[Any]
) -> dict[str, tuple[int, int, int]]:
    """Return by file system a job's ranks by bytes and metadata operations, and the number of jobs.

    series: of the job. There is no result if the time is too long.
    """
    if wanted.ends - wanted.begins > _LONGEST_RANKED:
        return {}
    rows: list[sql.Composed] = []
    for piece in find_pieces(connection, wanted):
        for kind in KINDS:
            values = added(kind), sql.SQL("0")
            rows.append(
                sql.SQL(
                    "SELECT time_series_id, {} AS bytes, {} AS metadata FROM {} "
                    "WHERE timestamp > {} AND timestamp <= {}"
                ).format(
                    *(values if kind == "ost" else reversed(values)),
                    piece.of(kind),
                    piece.begins,
                    piece.ends,
                )
            )
    query = sql.SQL(
        "WITH used AS MATERIALIZED ("
        "  SELECT time_series_id, sum(bytes) AS bytes, sum(metadata) AS metadata "
        "  FROM ({}) r GROUP BY 1"
        "), ranked AS ("
        "  SELECT {} AS name, bool_or(time_series_id = ANY ({})) AS is_wanted,"
        "    rank() OVER (PARTITION BY {} ORDER BY sum(u.bytes) DESC) AS bytes,"
        "    rank() OVER (PARTITION BY {} ORDER BY sum(u.metadata) DESC) AS metadata,"
        "    count(*) OVER (PARTITION BY {}) AS jobs"
        "  FROM used u JOIN (SELECT * FROM metadata WHERE time_series_id = ANY "
        "  (ARRAY(SELECT time_series_id FROM used)) OFFSET 0) m USING (time_series_id) "
        "  GROUP BY 1, {}"
        ") SELECT name, bytes, metadata, jobs FROM ranked WHERE is_wanted"
    ).format(
        sql.SQL(" UNION ALL ").join(rows),
        _FILE_SYSTEM,
        series,
        _FILE_SYSTEM,
        _FILE_SYSTEM,
        _FILE_SYSTEM,
        KEYS["job"],
    )
    return {name: tuple(ranks) for name, *ranks in connection.execute(query)}


def _check_operation(connection: Connection[Any], name: str) -> None:
    """Raise QueryError if no record ever had an operation, or if it has no sums."""
    if name.endswith(("_min", "_max")):
        raise QueryError(f"{name!r} has no sums: it is no counter")
    known = {*COLUMNS["ost"], *COLUMNS["mdt"]}
    if name in known:
        return
    for kind in KINDS:
        query = sql.SQL("SELECT FROM {} WHERE others ? {} LIMIT 1")
        if connection.execute(query.format(sql.Identifier(f"{kind}_last"), name)).rowcount:
            return
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
    raise QueryError(f"no record has the operation {name!r}: {hint}")


def _find_note(connection: Connection[Any], *, has_rows: bool, needs_jobs: bool) -> str:
    """Return why a result is empty, or lacks what only Slurm knows; else an empty text."""
    if not has_rows:
        latest = connection.execute(
            "SELECT greatest((SELECT max(timestamp) FROM ost_last), "
            "(SELECT max(timestamp) FROM mdt_last))"
        ).fetchone()
        if latest is None or latest[0] is None:
            return "the store has no observations"
        moment = latest[0].astimezone(UTC)
        return (
            f"nothing matches; the latest observation of all is of {moment:%Y-%m-%dT%H:%M:%S} UTC"
        )
    if needs_jobs and not connection.execute("SELECT FROM jobs LIMIT 1").rowcount:
        return (
            "the store has no jobs of Slurm, which have accounts and partitions: "
            "let the agent `jobs` send them to /job"
        )
    return ""


def added(kind: TargetKind) -> sql.Composed:
    """Return the sum of a row's deltas: bytes of an OST, metadata operations of an MDT."""
    names = ("read_bytes", "write_bytes") if kind == "ost" else METADATA
    return sql.SQL(" + ").join(sql.Identifier(f"{name}_delta") for name in names)


def split_job(text: str) -> tuple[str, str | None]:
    """Return the job and the cluster of `JOB@CLUSTER`, which is "" in `JOB@`; else the text."""
    job, at, cluster = text.rpartition("@")
    return (job, cluster) if at else (text, None)


def _find_slurm(
    connection: Connection[Any], job: str, cluster: str | None
) -> dict[str, str | None]:
    if not (job.isascii() and job.isdigit() and len(job) < 19):
        return {}
    cursor = connection.execute(
        "SELECT cluster, user_name, account, partition, job_name, state, start_time::text, "
        "end_time::text FROM jobs WHERE job_id = %(job)s "
        "AND coalesce(cluster = nullif(%(cluster)s, ''), true) ORDER BY reported DESC LIMIT 1",
        {"job": int(job), "cluster": cluster},
    )
    row = cursor.fetchone()
    if row is None or cursor.description is None:
        return {}
    return {column.name: value for column, value in zip(cursor.description, row, strict=True)}


def _sum_of(
    kind: TargetKind,
    columns: tuple[str, ...],
    pieces: list[TimePiece],
    wanted: sql.Composable,
) -> sql.Composed:
    """Return a query for the sums of each series of one kind."""
    names = [sql.Identifier(f"c{i}") for i in range(len(columns))]
    values = sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(
            sql.Identifier(f"{name}_delta")
            if name in COLUMNS[kind]
            else sql.SQL("(others_delta ->> {})::numeric").format(sql.Literal(name)),
            column,
        )
        for name, column in zip(columns, names, strict=True)
    )
    rows = sql.SQL(" UNION ALL ").join(
        sql.SQL(
            "SELECT time_series_id, {} FROM {} o WHERE timestamp > {} AND timestamp <= {}{}"
        ).format(
            values,
            piece.of(kind),
            piece.begins,
            piece.ends,
            wanted,
        )
        for piece in pieces
    )
    sums = sql.SQL(", ").join(sql.SQL("coalesce(sum({0}), 0) AS {0}").format(one) for one in names)
    return sql.SQL("SELECT time_series_id, {} FROM ({}) r GROUP BY 1").format(sums, rows)
