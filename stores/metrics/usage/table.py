"""The table of the energy of ended jobs by node, and its sums with their intervals."""

from __future__ import annotations

import math
import sqlite3
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ccagent.errors import ConfigurationError, NotPermittedError
from ccagent.log import logger
from ccagent.service.private_files import make_private
from ccagent.stores.metrics.job_table import check_database, identify, open_or_replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.stores.metrics.settings import UsageSettings
    from ccagent.stores.metrics.usage.job_energy import NodeJobEnergy

JOULES_PER_KWH = 3.6e6

_SCHEMA = """
create table if not exists usage (
    cluster text not null, job text not null, start integer not null, stop integer not null,
    user text not null, account text not null, node text not null,
    joules real, below real, above real, factor real,
    primary key (cluster, job, start, node)
) strict, without rowid;
create index if not exists usage_by_stop on usage (stop);
create table if not exists factors (
    source text not null, hour integer not null, factor real not null, primary key (source, hour)
) strict, without rowid;
"""

KEYS = {"user": "user", "project": "account", "cluster": "cluster"}
PERIODS = {"": "''", "day": "strftime('%Y-%m-%d', stop, 'unixepoch', 'localtime')",
           "month": "strftime('%Y-%m', stop, 'unixepoch', 'localtime')"}  # fmt: skip
"""SQL of the keys and periods of sums, by name. A job counts in the period of its end."""


class UsageQuery(NamedTuple):
    """A question: jobs that ended in [start, end). user: None: of all users; "": of none."""

    start: int
    end: int
    by: str = "project"
    each: str = ""
    cluster: str = ""
    user: str | None = None


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of a key and a period. None: unknown.

    jobs: ended; measured: with an energy; bounded: with an interval on all nodes. joules: of the
    nodes; least, most: its interval. grams: CO2 of the building; factor_share: share of the energy
    whose factor is known. cost: of the building's energy. coverage: share of its time with a known
    energy, of an ended job alone.
    """

    key: str
    period: str = ""
    jobs: int = 0
    measured: int = 0
    bounded: int = 0
    joules: float = 0.0
    least: float = 0.0
    most: float = 0.0
    grams: float | None = None
    factor_share: float = 0.0
    cost: float | None = None
    coverage: float | None = None


class UsageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of ended jobs. factor_problem: why the source has no new value; factor_hour: its last.

    start, end: seconds since 1970; factor_hour too, None without a value.
    """

    start: int
    end: int
    by: str
    each: str
    pue: float
    price: float
    currency: str
    common_error: float
    factor_source: str
    factor_hour: int | None
    factor_problem: str
    total: UsageSum
    rows: list[UsageSum]


class NodeSum(NamedTuple):
    """Sums over the jobs of a node. weighted: J times g per kWh, over `known` J."""

    joules: float
    below: float
    above: float
    weighted: float
    known: float


UsageRow = tuple[float | None, float | None, float | None, float | None]
"""A job on a node: J, J below and above it, and g CO2 per kWh; None: unknown."""


class UsageTable:
    """Energy of ended jobs, one row per job and node, in an SQLite file of its own.

    Threads may share it.
    """

    def __init__(self, path: str) -> None:
        """Open or create the table. Raise sqlite3.Error."""
        self._path = path
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._open()

    def _open(self, *, is_checked: bool = False) -> None:
        """Open the file; is_checked: look for damage, which takes long in a large file."""
        path = self._path
        try:
            make_private(path)
        except (OSError, NotPermittedError) as error:
            raise sqlite3.OperationalError(str(error)) from error
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = normal")
            self._database.executescript(_SCHEMA)
            if is_checked:
                check_database(self._database)
            self._file = identify(path)
            # Sums take long: they must not delay the store's writes.
            self._reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the file."""
        with self._lock, self._reading:
            self._database.close()
            self._reader.close()

    def _reopen(self) -> None:
        """Open the table again. Rename a damaged file. Raise sqlite3.Error."""
        with self._lock, self._reading:
            self._database.close()
            self._reader.close()
            open_or_replace(self._path, lambda: self._open(is_checked=True))

    def keep(self, job: StoredJob, uses: Mapping[str, NodeJobEnergy], factor: float | None) -> None:
        """Store an ended job. uses: by node; empty: unknown. factor: g CO2 per kWh, or None.

        A damaged or removed file is replaced. Raise sqlite3.Error.
        """
        try:
            if identify(self._path) != self._file:
                raise sqlite3.DatabaseError(f"{self._path} was removed or replaced")  # noqa: TRY301
            self._write(job, uses, factor)
        except sqlite3.OperationalError:
            raise  # a full disk or a lock: the file itself is intact
        except sqlite3.DatabaseError as error:
            logger.error("table of usage: %s; opening it again", error)
            self._reopen()
            self._write(job, uses, factor)

    def _write(
        self, job: StoredJob, uses: Mapping[str, NodeJobEnergy], factor: float | None
    ) -> None:
        common = (job.cluster, job.job, job.start, job.stop or job.start, job.user,
                  job.details.account)  # fmt: skip
        rows: list[tuple[Any, ...]] = [
            (*common, node, use.joules, use.below, use.above, factor) for node, use in uses.items()
        ]
        rows = rows or [(*common, "", None, None, None, None)]
        with self._lock, self._database:
            self._database.execute("begin immediate")
            self._database.execute(
                "delete from usage where cluster = ? and job = ? and start = ?", common[:3]
            )
            self._database.executemany(
                "insert into usage values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
            )

    def remove_before(self, time: int) -> None:
        """Delete the jobs that ended before a time."""
        with self._lock:
            self._database.execute("delete from usage where stop < ?", (time,))
            self._database.execute("delete from factors where hour < ?", (time // 3600,))

    def keep_factors(self, source: str, factors: Mapping[int, float]) -> None:
        """Store factors of a source by hour."""
        rows = [(source, hour, factor) for hour, factor in factors.items()]
        with self._lock:
            self._database.executemany("insert or replace into factors values (?, ?, ?)", rows)

    def read_factors(self, source: str) -> dict[int, float]:
        """Return the stored factors of a source by hour."""
        with self._lock:
            query = "select hour, factor from factors where source = ?"
            return dict(self._database.execute(query, (source,)).fetchall())

    def find(self, cluster: str, job: str, start: int) -> list[UsageRow]:
        """Return the rows of a job; none if it is not stored."""
        query = (
            "select joules, below, above, factor from usage"
            " where cluster = ? and job = ? and start = ?"
        )
        with self._lock:
            return self._database.execute(query, (cluster, job, start)).fetchall()

    def joules(self, cluster: str, start: int, end: int) -> dict[tuple[str, int], float]:
        """Return the measured energy in J of the jobs that ended in [start, end).

        By job number and start. Raise sqlite3.Error.
        """
        query = (
            "select job, start, sum(joules) from usage where cluster = ? and stop >= ?"
            " and stop < ? and joules is not null group by job, start"
        )
        with self._reading:
            rows = self._reader.execute(query, (cluster, start, end)).fetchall()
        return {(job, begin): joules for job, begin, joules in rows}

    def sums(self, query: UsageQuery, settings: UsageSettings) -> tuple[list[UsageSum], UsageSum]:
        """Return the sums by key and period, most energy first, and the total."""
        counts, nodes = self._read(query)
        groups: dict[tuple[str, str], list[NodeSum]] = {}
        of_nodes: dict[tuple[str, str], NodeSum] = {}
        for (key, period, *place), found in nodes:
            groups.setdefault((key, period), []).append(found)
            name = place[0], place[1]
            of_nodes[name] = _add(of_nodes.get(name), found)
        rows = [
            add_up(groups.get((key, period), ()), settings, key=key, period=period, jobs=jobs)
            for key, period, *jobs in counts
        ]
        rows.sort(key=lambda row: (row.period, -row.joules, row.key))
        every = [sum(column) for column in zip(*(row[2:] for row in counts), strict=True)]
        return rows, add_up(of_nodes.values(), settings, key="", jobs=every or [0, 0, 0])

    def _read(
        self, query: UsageQuery
    ) -> tuple[list[tuple[Any, ...]], list[tuple[tuple[str, ...], NodeSum]]]:
        key, period = KEYS[query.by], PERIODS[query.each]
        where, values = "stop >= ? and stop < ?", [query.start, query.end]
        texts: list[object] = []
        if query.cluster:
            where += " and cluster = ?"
            texts.append(query.cluster)
        if query.user is not None:
            where += " and user = ? and user != ''"
            texts.append(query.user)
        jobs = (
            f"select k, p, count(*), sum(n > 0), sum(n > 0 and n = b) from (select {key} k,"  # noqa: S608
            f" {period} p, count(joules) n, count(below) b from usage where {where}"
            " group by cluster, job, start) group by k, p"
        )
        nodes = (
            f"select {key}, {period}, cluster, node, sum(joules), total(below), total(above),"  # noqa: S608
            " total(joules * factor), total(case when factor is not null then joules end)"
            f" from usage where {where} and joules is not null group by 1, 2, 3, 4"
        )
        with self._reading:
            counts = self._reader.execute(jobs, (*values, *texts)).fetchall()
            rows = self._reader.execute(nodes, (*values, *texts)).fetchall()
        return counts, [(row[:4], NodeSum(*row[4:])) for row in rows]


def _add(one: NodeSum | None, other: NodeSum) -> NodeSum:
    return other if one is None else NodeSum(*map(sum, zip(one, other, strict=True)))


def add_up(
    nodes: Iterable[NodeSum],
    settings: UsageSettings,
    *,
    key: str,
    period: str = "",
    jobs: list[int],
) -> UsageSum:
    """Return the sum over nodes, with its interval.

    Errors of the jobs on one node have the same causes, its sensors and its idle power: they are
    added. Errors of different nodes are independent: their squares are added. Only the share
    `common_error` of the energy may be wrong on all nodes alike, because their sensors are of the
    same model: it is added too. The interval is never wider than the sum of all.
    """
    found = [*nodes]
    joules = sum(one.joules for one in found)
    below, above = (
        _join([(one.joules, side) for one, side in zip(found, sides, strict=True)],
              settings.common_error)
        for sides in ([one.below for one in found], [one.above for one in found])
    )  # fmt: skip
    known = sum(one.known for one in found)
    weighted = sum(one.weighted for one in found)
    total = joules / JOULES_PER_KWH * settings.pue
    return UsageSum(
        key=key,
        period=period,
        jobs=jobs[0],
        measured=jobs[1],
        bounded=jobs[2],
        joules=joules,
        least=max(0.0, joules - below),
        most=joules + above,
        grams=weighted / JOULES_PER_KWH * settings.pue if known > 0 else None,
        factor_share=known / joules if joules > 0 else 0.0,
        cost=total * settings.price if settings.price and found else None,
    )


def _join(sides: list[tuple[float, float]], common: float) -> float:
    """Return the distance from a sum to the end of its interval. sides: J and distance by node."""
    shared = common * sum(joules for joules, _ in sides)
    alone = math.hypot(*(max(0.0, side - common * joules) for joules, side in sides))
    return min(shared + alone, sum(side for _, side in sides))


def open_usage(path: str) -> UsageTable:
    """Open the table. Rename a damaged file. Raise ConfigurationError."""
    try:
        return open_or_replace(path, lambda: UsageTable(path))
    except sqlite3.Error as error:
        raise ConfigurationError(f"{path}: {error}; check the disk and the permissions") from error
