"""The store without HTTP: database, ingest, queries and counters."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from msgspec import structs

from ccagent.log import logger
from ccagent.senders import SenderTable
from ccagent.stores.database import Database, DatabaseAwayError, describe_error
from ccagent.stores.jobstats.admission import ANY_SENDER
from ccagent.stores.jobstats.export import export_rows
from ccagent.stores.jobstats.housekeeping import keep_house, prepare_database
from ccagent.stores.jobstats.ingest import ArrayIngest, StoredArray
from ccagent.stores.jobstats.job_records import (
    SharedJobIds,
    decode_jobs,
    find_shared_ids,
    store_jobs,
)
from ccagent.stores.jobstats.series import ClusterRules, EntryFormats, SeriesCache, read_namespaces
from ccagent.stores.jobstats.sums import sum_up
from ccagent.stores.jobstats.target_state import decode_states, store_states

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import TypeVar

    from ccagent.stores.jobstats.admission import SenderRights
    from ccagent.stores.jobstats.export import ExportRequest
    from ccagent.stores.jobstats.schema import TimePartitions
    from ccagent.stores.jobstats.settings import JobstatsStoreSettings
    from ccagent.stores.jobstats.target_state import DecodedStates

    Q = TypeVar("Q")
    R = TypeVar("R")

_QUERY_CONNECTIONS = 2


class JobstatsService:
    """Stores arrays and answers queries. Its methods block; call them in threads.

    The database may not be available at the start: call `prepare` until it succeeds.
    """

    def __init__(self, settings: JobstatsStoreSettings, url: str) -> None:
        """Set the settings. Raise ConfigurationError."""
        self.settings = settings
        self._future = timedelta(seconds=settings.limits.future.seconds)
        self._retention = timedelta(seconds=settings.series.retention.seconds)
        self.database = Database(
            url,
            connections=settings.connections + _QUERY_CONNECTIONS,
            password_file=settings.password_file,
        )
        self._formats = EntryFormats(settings.formats)
        self._clusters = ClusterRules(settings.clusters)
        self._namespaces = (
            read_namespaces(settings.namespaces_file) if settings.namespaces_file else {}
        )
        self._partitions: TimePartitions | None = None
        self._cache: SeriesCache | None = None
        self._ingest: ArrayIngest | None = None
        self._shared_ids = SharedJobIds(0, [])
        self.began = time.time()
        self.senders = SenderTable()
        """What each sender has cost."""

    @property
    def is_ready(self) -> bool:
        """True after the database was reached and prepared."""
        return self._ingest is not None

    def prepare(self) -> None:
        """Migrate the database and prepare ingest. Raise ConfigurationError, DatabaseAwayError."""
        settings = self.settings
        partitions = prepare_database(
            self.database, settings.series, self._formats, self._namespaces, self._clusters
        )
        self.database.open()
        self._partitions = partitions
        self._cache = SeriesCache(
            self._formats, self._namespaces, self._clusters, settings.series.retention.seconds
        )
        self._ingest = ArrayIngest(self.database, self._cache, partitions, settings)
        logger.info(
            "database %s is ready, retention %s", self.database.place, settings.series.retention
        )

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    def store_array(
        self, body: bytes, rights: SenderRights = ANY_SENDER, identity: str = ""
    ) -> StoredArray:
        """Store an array of records. Raise RefusedArrayError, DatabaseAwayError.

        rights: of the sender. identity: of the sender, for its limits.
        """
        stored = self._ready().store(body, rights, identity)
        self.senders.count(
            identity, messages=1, bytes=len(body), records=stored.records,
            new_series=stored.new_series, refused_records=len(stored.refused),
        )  # fmt: skip
        return stored

    def seconds_left(self) -> int:
        """Return the seconds until senders may make new series again."""
        return self._ready().budget.seconds_left()

    def store_jobs(self, body: bytes, identity: str) -> int:
        """Store an envelope of jobs. Return the number of jobs.

        identity: of the sender. Raise RefusedEnvelopeError, DatabaseAwayError.
        """
        self.senders.count(identity, messages=1, bytes=len(body))
        ingest = self._ready()
        rows = decode_jobs(body, datetime.now(UTC) + self._future)
        with self.database.connection() as connection:
            store_jobs(connection, rows)
        ingest.counters.jobs += len(rows)
        return len(rows)

    def store_states(
        self, body: bytes, rights: SenderRights = ANY_SENDER, identity: str = ""
    ) -> DecodedStates:
        """Store the state of targets from lines of points. Return what the lines contained.

        rights, identity: as for `store_array`. Raise RefusedArrayError, DatabaseAwayError.
        """
        ingest, now = self._ready(), datetime.now(UTC)
        decoded = decode_states(body, rights, now + self._future, now)
        oldest = now - self._retention
        rows = {key: numbers for key, numbers in decoded.rows.items() if key[2] >= oldest}
        with self.database.connection() as connection:
            store_states(connection, rows)
        self.senders.count(
            identity, messages=1, bytes=len(body), refused_records=len(decoded.refused)
        )
        ingest.counters.states += len(rows)
        ingest.counters.refused_records += len(decoded.refused)
        return decoded

    def export(self, request: ExportRequest) -> Generator[bytes, None, None]:
        """Yield the pieces of an export, over a separate connection. Raise DatabaseAwayError."""
        self._ready()
        with self.database.connect_alone() as connection:
            connection.read_only = True
            yield from export_rows(connection, request)

    def ask(self, query: Callable[[psycopg.Connection[Any], Q], R], request: Q) -> R:
        """Run a query in a read-only transaction. Raise DatabaseAwayError, QueryError."""
        self._ready()
        with self.database.connection() as connection:
            begin_reading(connection, self.settings.limits.query.seconds)
            return query(connection, request)

    def keep_house(self) -> None:
        """Apply the retention and create partitions. Failures are logged and retried later."""
        if not self.is_ready or not self._work("retention", self._keep_house):
            return
        if self._shared_ids.number:
            logger.warning(
                "%d job ids are of several clusters (%s), and their I/O is added: "
                "configure [clusters.NAME]",
                self._shared_ids.number,
                ", ".join(self._shared_ids.clusters),
                key="jobstats clusters",
            )

    def _keep_house(self, connection: psycopg.Connection[Any]) -> None:
        series = self.settings.series
        if dropped := keep_house(connection, series, self._partitions, datetime.now(UTC)):
            logger.info("retention: dropped %d partitions", dropped)
        if not self.settings.clusters:
            self._shared_ids = find_shared_ids(connection)

    def sum_up(self) -> None:
        """Compute missing sums. Failures are logged and retried later."""
        self._work("sums", self._sum_up)

    def _sum_up(self, connection: psycopg.Connection[Any]) -> None:
        sum_up(connection, self._partitions, datetime.now(UTC), self._retention)

    def _work(self, name: str, work: Callable[[psycopg.Connection[Any]], None]) -> bool:
        """Work with a connection in autocommit. Log the database's errors, and return False."""
        try:
            with self.database.connect_alone() as connection:
                work(connection)
        except DatabaseAwayError as error:
            logger.warning("%s: %s; retrying later", name, error)
        except psycopg.Error as error:
            logger.warning("%s: %s; retrying later", name, describe_error(error))
        else:
            return True
        return False

    def numbers(self) -> dict[str, int]:
        """Return the counters of this process."""
        found = {"ready": int(self.is_ready), "uptime_seconds": int(time.time() - self.began)}
        if self._ingest is not None and self._cache is not None:
            found |= structs.asdict(self._ingest.counters)
            found["series_cached"] = len(self._cache)
            found["shared_job_ids"] = self._shared_ids.number
        return found

    def count_refused(self, records: int, identity: str) -> None:
        """Count a refused array and its invalid records."""
        self.senders.count(identity, refused_arrays=1, refused_records=records)
        if self._ingest is not None:
            self._ingest.counters.refused_arrays += 1
            self._ingest.counters.refused_records += records

    def count_refused_request(self, identity: str) -> None:
        """Count a request without login or with a body beyond the limits."""
        self.senders.count(identity, refused_requests=1)

    def count_unavailable(self) -> None:
        """Count a request that must be repeated."""
        if self._ingest is not None:
            self._ingest.counters.unavailable += 1

    def _ready(self) -> ArrayIngest:
        if self._ingest is None:
            raise DatabaseAwayError(f"database {self.database.place}: not reached yet")
        return self._ingest


def begin_reading(connection: psycopg.Connection[Any], seconds: float) -> None:
    """Make the transaction read-only. seconds: time limit of each query."""
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
    # Keep sums of a hundred thousand series in memory.
    connection.execute("SET LOCAL work_mem = '64MB'")
    # The planner expects a few rows of a set that the same query has just found. A nested loop over
    # two such sets reads each row of one for each row of the other.
    connection.execute("SET LOCAL enable_nestloop = off")
    # JIT compilation would take longer than the query.
    connection.execute("SET LOCAL jit = off")
    connection.execute(
        "SELECT set_config('statement_timeout', %s, true)", [f"{int(seconds * 1000)}"]
    )
