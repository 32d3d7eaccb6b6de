"""The state of the file systems at one time: rates of targets and jobs in the last interval.

The last interval of a target ends with its server's last reading. An entry without a row in that
reading has not changed. The rates before are means of the hour before the last interval.
"""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec
from psycopg import sql

from ccagent.stores.jobstats.queries import FILTERS, JOBS, KEYS, added, split_job
from ccagent.stores.jobstats.query_request import (
    QueryError,
    TimeRange,
    check_names,
    parse_duration,
    parse_filters,
    parse_limit,
    parse_moment,
)
from ccagent.stores.jobstats.schema import (
    COLUMNS,
    KINDS,
    METADATA,
    file_system_of,
)
from ccagent.stores.jobstats.sums import find_pieces
from ccagent.stores.jobstats.target_state import TargetState, find_states

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg import Connection

    from ccagent.stores.jobstats.schema import TargetKind

LiveOrder = Literal["share", "bytes", "metadata", "latency"]
ORDERS: tuple[LiveOrder, ...] = get_args(LiveOrder)
_ORDERS: dict[str, LiveOrder] = {name: name for name in ORDERS}

_HOUR = timedelta(hours=1)
_LONGEST = timedelta(hours=6)
"""Maximum time that is searched for the start of a high rate."""

_USER = sql.SQL('(m."user" = {0} OR m.user_id::text = {0} OR coalesce(j.user_name = {0}, false))')
"""Entries often have only a number: the answer shows Slurm's name, so the filter knows it, too."""

_DATA = ("read", "write")
_TIMES = ("read_usecs", "write_usecs")
"""Sums of the times of reads and writes in us, among the other operations of a record."""


class LiveRequest(NamedTuple):
    """A request for the state at a time. window: maximum age of the last interval."""

    at: datetime
    window: timedelta
    sort: LiveOrder
    limit: int
    filters: dict[str, str]


class LiveTarget(msgspec.Struct, frozen=True):
    """Rates of a target per second, latencies in us, None where no server reports them.

    before: the rate of bytes (OST) or operations (MDT) in the hour before. factor: the rate now, as
    a multiple of it; None if there was none. free, clients, locks, latency, slower: the target's
    own state, see TargetState.
    """

    target: str
    seconds: float
    read_bytes: float
    write_bytes: float
    operations: float
    read_latency: float | None
    write_latency: float | None
    before: float
    factor: float | None
    free: float | None = None
    clients: int | None = None
    locks: int | None = None
    latency: float | None = None
    slower: float | None = None


class LiveJob(msgspec.Struct, frozen=True):
    """Rates of a job per second on one file system, largest share first.

    share: of all bytes or of all metadata operations of the file system, whichever is greater, from
    0 to 1. dominant: the most frequent metadata operation. latency: mean of reads and writes in us.
    since: the start of the uninterrupted time with at least half of the rate. factor: the rate as a
    multiple of the hour before `since`; None if there was none.
    """

    job: str
    file_system: str
    user: str
    account: str
    state: str
    nodes: int
    share: float
    read_bytes: float
    write_bytes: float
    metadata: float
    dominant: str
    dominant_rate: float
    latency: float | None
    since: str
    factor: float | None


class LiveAnswer(msgspec.Struct, frozen=True):
    """The state at a time. note: why nothing is shown."""

    at: str
    targets: list[LiveTarget]
    jobs: list[LiveJob]
    note: str = ""


def parse_live(values: Mapping[str, str], now: datetime) -> LiveRequest:
    """Parse the parameters of `live`. Raise QueryError."""
    check_names(values, {"at", "window", "sort", "limit", *FILTERS})
    at = _parse_at(values["at"], now) if values.get("at") else now
    sort = _ORDERS.get(values.get("sort", "share"))
    if sort is None:
        raise QueryError(f"sort: expected one of {', '.join(ORDERS)}")
    return LiveRequest(
        at,
        parse_duration("window", values.get("window") or "5m"),
        sort,
        parse_limit(values, 1000),
        parse_filters(values),
    )


def _parse_at(text: str, now: datetime) -> datetime:
    """Parse a time, or the last time of day such as 14:10 (UTC)."""
    if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text):
        at = parse_moment("at", f"{now:%Y-%m-%d}T{text}")
        return at if at <= now else at - timedelta(days=1)
    return parse_moment("at", text)


def find_live(connection: Connection[Any], request: LiveRequest) -> LiveAnswer:
    """Return the rates of targets and jobs in the last interval before a time."""
    parts = [part for kind in KINDS for part in _last_interval(connection, kind, request)]
    at = request.at.isoformat()
    if not parts:
        note = f"no records in the {request.window.total_seconds():g} s before this time"
        return LiveAnswer(at, [], [], note)
    before = _hour_before(connection, request)
    jobs = [job for job in _add_up(parts) if job.is_wanted and job.weight(request.sort)]
    jobs.sort(key=lambda job: (-job.weight(request.sort), job.job, job.file_system))
    shown = jobs[: request.limit]
    growth = _find_growth(connection, shown, request.at)
    return LiveAnswer(
        at,
        _describe_targets(parts, before, find_states(connection, request.at, request.window)),
        [_describe_job(job, deltas) for job, deltas in zip(shown, growth, strict=True)],
    )


class _Part(NamedTuple):
    """Rates of a job on a target in its last interval. values: by operation, per second."""

    kind: TargetKind
    target: str
    job: str
    user: str
    account: str
    state: str
    nodes: list[str]
    series: list[Any]
    is_wanted: bool
    seconds: float
    values: dict[str, float]

    @property
    def file_system(self) -> str:
        return file_system_of(self.target)


class _JobRates:
    """Rates of a job on a file system. totals: bytes and metadata operations of all its jobs."""

    def __init__(self, job: str, file_system: str, totals: dict[str, float]) -> None:
        self.job = job
        self.file_system = file_system
        self.values: defaultdict[str, float] = defaultdict(float)
        self.metadata: defaultdict[str, float] = defaultdict(float)
        self.nodes: set[str] = set()
        self.series: list[Any] = []
        self.user = self.account = self.state = ""
        self.is_wanted = False
        self._totals = totals

    def add(self, part: _Part) -> None:
        """Add the rates on a target."""
        rates = self.values if part.kind == "ost" else self.metadata
        for name, value in part.values.items():
            rates[name] += value
        self.nodes.update(part.nodes)
        self.series += part.series
        self.user = self.user or part.user
        self.account, self.state = part.account, part.state
        self.is_wanted = self.is_wanted or part.is_wanted

    @property
    def bytes(self) -> float:
        return self.values["read_bytes"] + self.values["write_bytes"]

    @property
    def operations(self) -> float:
        return sum(self.metadata[name] for name in METADATA)

    @property
    def latency(self) -> float | None:
        """Mean time of a read or write in us."""
        return _ratio(
            sum(self.values[name] for name in _TIMES), sum(self.values[name] for name in _DATA)
        )

    @property
    def shares(self) -> tuple[float, float]:
        """The shares of all bytes and of all metadata operations."""
        return (
            self.bytes / (self._totals["bytes"] or 1.0),
            self.operations / (self._totals["metadata"] or 1.0),
        )

    def weight(self, order: LiveOrder) -> float:
        """Return the value to sort by."""
        match order:
            case "share":
                return max(self.shares)
            case "bytes":
                return self.bytes
            case "metadata":
                return self.operations
            case "latency":
                return self.latency or 0.0


def _last_interval(
    connection: Connection[Any], kind: TargetKind, request: LiveRequest
) -> list[_Part]:
    """Return the rates of each job on each target of a kind."""
    names = (*COLUMNS[kind], *(_TIMES if kind == "ost" else ()))
    values = sql.SQL(", ").join(_sum(kind, name) for name in names)
    known = FILTERS | {"user": _USER}
    filters = [
        known[name].format(value, *split_job(value)) for name, value in request.filters.items()
    ]
    wanted = sql.SQL(" AND ").join(filters) if filters else sql.SQL("true")
    query = sql.SQL(
        "WITH recent AS MATERIALIZED ("
        "  SELECT *, extract(epoch FROM timestamp - since) AS seconds FROM {table}"
        "  WHERE timestamp > {at}::timestamptz - {window}::interval AND timestamp <= {at}"
        "    AND since < timestamp"
        "), named AS ("
        # Without the array, a join reads the metadata of all series.
        "  SELECT * FROM metadata WHERE time_series_id = ANY "
        "  (ARRAY(SELECT time_series_id FROM recent)) OFFSET 0"
        ") "
        'SELECT m.target, {job}, coalesce(max(j.user_name), max(m."user"), '
        "  max(m.user_id)::text, ''), coalesce(max(j.account), ''), coalesce(max(j.state), ''), "
        "  array_remove(array_agg(DISTINCT m.nodename), NULL), "
        "  array_agg(DISTINCT m.time_series_id), bool_or({wanted}), max(m.seconds)::float8, "
        "  {values} "
        "FROM ("
        "  SELECT *, max(timestamp) OVER (PARTITION BY server, target) AS last"
        "  FROM recent JOIN named USING (time_series_id)"
        ") m{jobs} "
        "WHERE m.timestamp = m.last GROUP BY 1, 2"
    ).format(
        table=sql.Identifier(kind),
        at=request.at,
        window=request.window,
        job=KEYS["job"],
        wanted=wanted,
        values=values,
        jobs=JOBS,
    )
    return [
        _Part._make((kind, *row[:9], dict(zip(names, row[9:], strict=True))))
        for row in connection.execute(query)
    ]


def _sum(kind: TargetKind, name: str) -> sql.Composed:
    """Return the sum of the rates of an operation."""
    delta = (
        sql.SQL("m.{}").format(sql.Identifier(f"{name}_delta"))
        if name in COLUMNS[kind]
        else sql.SQL("(m.others_delta ->> {})::numeric").format(sql.Literal(name))
    )
    return sql.SQL("coalesce(sum({} / m.seconds), 0)::float8").format(delta)


def _hour_before(connection: Connection[Any], request: LiveRequest) -> dict[str, float]:
    """Return the mean rate of each target in the hour before: bytes of OSTs, operations of MDTs."""
    ends = request.at - request.window
    pieces = find_pieces(connection, TimeRange(ends - _HOUR, ends))
    found: dict[str, float] = {}
    for kind in KINDS:
        rows = sql.SQL(" UNION ALL ").join(
            sql.SQL(
                "SELECT time_series_id, sum({}) AS total FROM {} "
                "WHERE timestamp > {} AND timestamp <= {} GROUP BY 1"
            ).format(
                added(kind),
                piece.of(kind),
                piece.begins,
                piece.ends,
            )
            for piece in pieces
        )
        query = sql.SQL(
            "WITH used AS MATERIALIZED ({}) SELECT m.target, sum(u.total)::float8 FROM used u "
            "JOIN (SELECT time_series_id, target FROM metadata WHERE time_series_id = ANY "
            "(ARRAY(SELECT time_series_id FROM used)) OFFSET 0) m USING (time_series_id) GROUP BY 1"
        ).format(rows)
        found |= {
            target: total / _HOUR.total_seconds() for target, total in connection.execute(query)
        }
    return found


def _add_up(parts: Sequence[_Part]) -> list[_JobRates]:
    """Return the rates of each job on each file system."""
    totals: defaultdict[str, dict[str, float]] = defaultdict(lambda: {"bytes": 0, "metadata": 0})
    jobs: dict[tuple[str, str], _JobRates] = {}
    for part in parts:
        key = part.job, part.file_system
        if key not in jobs:
            jobs[key] = _JobRates(*key, totals[part.file_system])
        jobs[key].add(part)
    for job in jobs.values():
        total = totals[job.file_system]
        total["bytes"] += job.bytes
        total["metadata"] += job.operations
    return list(jobs.values())


def _describe_targets(
    parts: Sequence[_Part], before: Mapping[str, float], states: Mapping[str, TargetState]
) -> list[LiveTarget]:
    """Return the rates of each target, by name."""
    by_target: defaultdict[str, list[_Part]] = defaultdict(list)
    for part in parts:
        by_target[part.target].append(part)
    found: list[LiveTarget] = []
    for target, own in sorted(by_target.items()):
        rates: defaultdict[str, float] = defaultdict(float)
        for part in own:
            for name, value in part.values.items():
                rates[name] += value
        is_ost = own[0].kind == "ost"
        transferred = rates["read_bytes"] + rates["write_bytes"]
        counted = COLUMNS["ost"][2:] if is_ost else METADATA
        operations = sum(rates[name] for name in counted)
        usual = before.get(target, 0.0)
        found.append(
            LiveTarget(
                target,
                max(part.seconds for part in own),
                rates["read_bytes"],
                rates["write_bytes"],
                operations,
                _ratio(rates["read_usecs"], rates["read"]),
                _ratio(rates["write_usecs"], rates["write"]),
                usual,
                _ratio(transferred if is_ost else operations, usual),
                *states.get(target, TargetState()),
            )
        )
    return found


def _describe_job(job: _JobRates, deltas: Sequence[tuple[float, float, float]]) -> LiveJob:
    """Return a job's rates, and since when they are as high. deltas: as for `find_beginning`."""
    dominant = max(METADATA, key=lambda name: job.metadata[name])
    since, factor = find_beginning(deltas)
    return LiveJob(
        job.job,
        job.file_system,
        job.user,
        job.account,
        job.state,
        len(job.nodes),
        max(job.shares),
        job.values["read_bytes"],
        job.values["write_bytes"],
        job.operations,
        dominant if job.operations else "",
        job.metadata[dominant],
        job.latency,
        datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds"),
        factor,
    )


def _find_growth(
    connection: Connection[Any], jobs: Sequence[_JobRates], at: datetime
) -> list[list[tuple[float, float, float]]]:
    """Return for each job the growth of the counters of its larger share, by interval in s."""
    found: list[list[tuple[float, float, float]]] = [[] for _ in jobs]
    kinds: list[TargetKind] = [
        "ost" if of_bytes >= of_metadata else "mdt"
        for of_bytes, of_metadata in (job.shares for job in jobs)
    ]
    for kind in KINDS:
        owners = {
            series: found[number]
            for number, job in enumerate(jobs)
            if kinds[number] == kind
            for series in job.series
        }
        query = sql.SQL(
            "SELECT time_series_id, extract(epoch FROM since)::float8, "
            "extract(epoch FROM timestamp)::float8, ({})::float8 FROM {} "
            "WHERE time_series_id = ANY (%s) AND timestamp > %s AND timestamp <= %s "
            "AND since < timestamp"
        ).format(added(kind), sql.Identifier(kind))
        for series, *interval in connection.execute(query, [list(owners), at - _LONGEST, at]):
            owners[series].append(tuple(interval))
    return found


def find_beginning(deltas: Sequence[tuple[float, float, float]]) -> tuple[float, float | None]:
    """Return the start of the time with at least half of the last rate, and a factor.

    deltas: start, end in s and growth of intervals, which may overlap. The factor is the last rate
    as a multiple of the mean of the hour before the start; None if nothing was done in that hour.
    """
    changes: defaultdict[float, float] = defaultdict(float)
    for begins, ends, growth in sorted(deltas):  # sums of floats depend on the order
        rate = growth / (ends - begins)
        changes[begins] += rate
        changes[ends] -= rate
    times = sorted(changes)
    rates: list[float] = []
    rate = 0.0
    for time in times[:-1]:
        rate += changes[time]
        rates.append(rate)
    if not rates:
        return 0.0, None
    # Intervals of several targets don't end together: use the length of the one that ends last.
    length = max(ends - begins for begins, ends, _ in deltas if ends == times[-1])
    last = _integral(times, rates, times[-1] - length, times[-1]) / length
    first = len(rates)
    while first and rates[first - 1] >= last / 2:
        first -= 1
    since = times[first] if first < len(rates) else times[-2]
    hour = _HOUR.total_seconds()
    return since, _ratio(last, _integral(times, rates, since - hour, since) / hour)


def _integral(times: Sequence[float], rates: Sequence[float], begins: float, ends: float) -> float:
    """Return the growth between two times, of a rate that is constant between changes."""
    return sum(
        rate * max(0.0, min(ends, until) - max(begins, since))
        for rate, (since, until) in zip(rates, pairwise(times), strict=True)
    )


def _ratio(value: float, of: float) -> float | None:
    return value / of if value and of else None
