"""Metadata of series: written once, and cached by the process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from psycopg import adapters
from psycopg.adapt import Dumper
from psycopg.pq import Format

from ccagent.stores.jobstats.refusals import RefusedArrayError, RefusedRecord
from ccagent.stores.jobstats.series_ids import EntryFormats, make_series_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from psycopg import Connection
    from psycopg.abc import Buffer

    from ccagent.stores.jobstats.operations import TargetKind
    from ccagent.stores.jobstats.records import JobstatsObservation

_MOST = 200_000
_FORGET_AFTER = 86400.0
"""Seconds until the cache is cleared, because the retention removes metadata."""

_INSERT = """
INSERT INTO metadata (
    time_series_id, target, entry_id, kind, job_id, job, user_id, "user", group_id, process_id,
    nodename, executable, format, malformed
)
SELECT * FROM unnest(
    %s::uuid[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::bigint[],
    %s::text[], %s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::boolean[]
)
ON CONFLICT DO NOTHING
"""
_EXISTING = "SELECT time_series_id FROM metadata WHERE time_series_id = ANY(%s)"
_SELECT = """
SELECT time_series_id, target, entry_id, kind FROM metadata WHERE time_series_id = ANY(%s)
"""


class SeriesId(bytes):
    """The bytes of a series' id, as copied into the database."""

    __slots__ = ()


class SeriesIdDumper(Dumper):
    """Dumps the id of a series. Building a UUID for each row would cost more than its counters."""

    format = Format.BINARY
    oid = adapters.types["uuid"].oid

    def dump(self, obj: SeriesId) -> Buffer | None:
        """Return the bytes of the id."""
        return obj


class KnownSeries(NamedTuple):
    """A series with stored metadata."""

    series_id: SeriesId
    kind: TargetKind


SeriesKey = tuple[str, str, str | None]
"""Target, entry, and the sender's id or None."""


class SeriesCache:
    """Finds the series of observations, and writes the metadata of new series. Thread-safe.

    namespaces: by format. Writing existing metadata again changes nothing.
    """

    def __init__(
        self,
        formats: EntryFormats,
        namespaces: Mapping[str, UUID],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        most: int = _MOST,
    ) -> None:
        self._formats = formats
        self._namespaces = namespaces
        self._monotonic = monotonic
        self._most = most
        self._known: dict[SeriesKey, KnownSeries] = {}
        self._since = monotonic()

    def __len__(self) -> int:
        return len(self._known)

    def find(
        self,
        connection: Connection[Any],
        observations: Iterable[JobstatsObservation],
        admit: Callable[[str], bool],
    ) -> dict[SeriesKey, KnownSeries]:
        """Return the series of observations, in the connection's transaction.

        admit: returns whether a server may have one more new series. Refused ones are missing in
        the result. After the commit pass it to `remember`. Raise RefusedArrayError if a sender's id
        belongs to another entry.
        """
        now = self._monotonic()
        if now - self._since > _FORGET_AFTER:
            self._known, self._since = {}, now
        known = self._known
        found: dict[SeriesKey, KnownSeries] = {}
        missing: dict[SeriesKey, JobstatsObservation] = {}
        for each in observations:
            key = (each.target, each.entry_id, each.supplied)
            series = known.get(key)
            if series is None:
                missing.setdefault(key, each)
            else:
                found[key] = series
        if missing:
            found |= self._write(connection, missing, admit)
        return found

    def remember(self, found: dict[SeriesKey, KnownSeries]) -> None:
        """Cache series with committed metadata."""
        if len(self._known) + len(found) > self._most:
            self._known = {}
        self._known.update(found)

    def _write(
        self,
        connection: Connection[Any],
        missing: dict[SeriesKey, JobstatsObservation],
        admit: Callable[[str], bool],
    ) -> dict[SeriesKey, KnownSeries]:
        rows = {key: self._make_row(each) for key, each in missing.items()}
        ids = [row[0] for row in rows.values()]
        existing = {one for (one,) in connection.execute(_EXISTING, [ids])}
        rows = {
            key: row
            for key, row in rows.items()
            if row[0] in existing or admit(missing[key].server)
        }
        if not rows:
            return {}
        # Sort the rows to avoid deadlocks between processes.
        columns = list(zip(*sorted(rows.values(), key=lambda row: row[0].bytes), strict=True))
        connection.execute(_INSERT, [list(column) for column in columns])
        stored = {
            series_id: (target, entry_id, kind)
            for series_id, target, entry_id, kind in connection.execute(_SELECT, [list(columns[0])])
        }
        found: dict[SeriesKey, KnownSeries] = {}
        refused: list[RefusedRecord] = []
        for key, row in rows.items():
            target, entry_id, kind = stored[row[0]]
            if (target, entry_id) != key[:2]:
                reason = f"time_series_id: {row[0]} belongs to another target or entry"
                refused.append(RefusedRecord(missing[key].number, reason))
            found[key] = KnownSeries(SeriesId(row[0].bytes), kind)
        if refused:
            raise RefusedArrayError("ids belong to other series; no record is stored", refused)
        return found

    def _make_row(self, each: JobstatsObservation) -> tuple[Any, ...]:
        """Return a row of metadata. Parse the entry's id if the sender has not parsed it."""
        meaning = self._formats.parse(each.entry_id)
        parts, form = each.parts, None
        is_malformed = each.is_malformed
        if not parts and not is_malformed:
            parts, form = meaning.parts, meaning.form or None
            is_malformed = form is None
        job = parts.get("job_id")
        return (
            UUID(each.supplied)
            if each.supplied is not None
            else make_series_id(self._namespaces[meaning.form], each.target, each.entry_id),
            each.target,
            each.entry_id,
            each.kind,
            job if isinstance(job, int) else None,
            None if job is None else str(job),
            parts.get("user_id"),
            parts.get("user"),
            parts.get("group_id"),
            parts.get("process_id"),
            parts.get("nodename"),
            parts.get("executable"),
            form,
            is_malformed,
        )
