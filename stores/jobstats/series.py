"""Series: their ids, the clusters of their jobs, and metadata, written once and cached.

An id is a UUID version 5 of `<target>:<entry_id>`, with a secret namespace for each format.
Source: the specification, "Ingest server". Each format has a separate namespace, because the same
text has different meanings in different formats.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from ccagent.agents.lustre.jobstats.entry import IdFormat
from ccagent.agents.lustre.jobstats.records import time_series_id
from ccagent.config.secret import secret_text
from ccagent.errors import ConfigurationError
from ccagent.log import logger
from ccagent.machine.hostlist import expand
from ccagent.stores.jobstats.admission import RefusedRecord
from ccagent.stores.jobstats.schema import PARTS, file_system_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from psycopg import Connection

    from ccagent.stores.jobstats.records import JobstatsObservation
    from ccagent.stores.jobstats.schema import TargetKind
    from ccagent.stores.jobstats.settings import ClusterRuleSettings

MALFORMED = ""
"""Name for ids that match no format."""

SeriesKey = tuple[str, str, str | None, str | None]
"""Target, entry, and the sender's id and user name, or None."""

_MOST = 200_000
_FORGET_AFTER = 86400.0
"""Maximum seconds until the cache is cleared, because the retention removes metadata."""

_USER_PART = PARTS.index("user")
_USER_ID, _USER = 6, 7
"""Positions in a row of metadata."""
_MOST_NAMED = 5
"""Maximum number of contradictions of an array in the log."""

_FOREIGN = "time_series_id: belongs to another target or entry"
_OVER = "limits.new-series: the sender has made its new series of this hour"

_INSERT = """
INSERT INTO metadata (
    time_series_id, target, entry_id, kind, job_id, job, user_id, "user", group_id, process_id,
    nodename, executable, format, malformed, cluster
)
SELECT * FROM unnest(
    %s::uuid[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::bigint[],
    %s::text[], %s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::boolean[],
    %s::text[]
)
ON CONFLICT DO NOTHING
"""
_EXISTING = "SELECT time_series_id FROM metadata WHERE time_series_id = ANY(%s)"
_SELECT = """
SELECT time_series_id, target, entry_id, kind, "user" FROM metadata WHERE time_series_id = ANY(%s)
"""
_CONTEST = """
UPDATE metadata SET "user" = user_id::text WHERE time_series_id = ANY(%s) AND "user" IS NOT NULL
"""
"""Senders disagree about the name of a user, so that only the id of the entry counts."""
_NAME_USERS = """
UPDATE metadata m SET "user" = n.name
FROM unnest(%s::uuid[], %s::text[]) AS n (time_series_id, name)
WHERE m.time_series_id = n.time_series_id AND m."user" IS NULL
"""


class EntryMeaning(NamedTuple):
    """The parsed id of an entry. form: its format; empty without a match. parts: its fields."""

    form: str
    parts: dict[str, Any]


class EntryFormats:
    """The formats of entry ids, tried in order."""

    def __init__(self, formats: Iterable[str]) -> None:
        self._formats = [IdFormat(form) for form in formats]

    def parse(self, entry_id: str) -> EntryMeaning:
        """Return the format and the parts of an id."""
        for form in self._formats:
            parts = form.parse(entry_id)
            if parts is not None:
                return EntryMeaning(form.text, parts)
        return EntryMeaning(MALFORMED, {})

    @property
    def names(self) -> list[str]:
        """The formats, and MALFORMED."""
        return [*(form.text for form in self._formats), MALFORMED]


class ClusterRules:
    """The clusters of jobs, by the node or format of an entry's id, or by its file system.

    A node decides before a format, and a format before a file system.
    """

    def __init__(self, clusters: Mapping[str, ClusterRuleSettings]) -> None:
        self.text = msgspec.json.encode(clusters, order="sorted").decode()
        """The rules as text, for comparison."""
        self._nodes: dict[str, str] = {}
        self._formats: dict[str, str] = {}
        self._file_systems: dict[str, str] = {}
        for name, rule in clusters.items():
            self._nodes |= dict.fromkeys(expand(",".join(rule.nodes)), name)
            self._formats |= dict.fromkeys(rule.formats, name)
            self._file_systems |= dict.fromkeys(rule.file_systems, name)

    def find(self, target: str, node: str | None, form: str | None) -> str | None:
        """Return the name of a cluster; None without a rule that matches.

        A node's name may have a domain that the rule lacks.
        """
        node = node or ""
        return (
            self._nodes.get(node)
            or self._nodes.get(node.partition(".")[0])
            or self._formats.get(form or "")
            or self._file_systems.get(file_system_of(target))
        )


def make_series_id(namespace: UUID, target: str, entry_id: str) -> UUID:
    """Return the id of a series in a namespace."""
    return UUID(time_series_id(namespace.bytes, target, entry_id))


def read_namespaces(path: str) -> dict[str, UUID]:
    """Read namespaces from lines of a format and its UUID; `-` for ids that match no format.

    Raise ConfigurationError, whose message never contains a namespace.
    """
    found: dict[str, UUID] = {}
    for number, line in enumerate(secret_text(path).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            form, text = words
            found[MALFORMED if form == "-" else form] = UUID(text)
        except ValueError:
            raise ConfigurationError(
                f"{path}: line {number}: expected a format and a UUID"
            ) from None
    return found


class KnownSeries(NamedTuple):
    """A series with stored metadata."""

    series_id: bytes
    kind: TargetKind


def key_of(one: JobstatsObservation) -> SeriesKey:
    """Return the key of an observation's series."""
    return one.target, one.entry_id, one.supplied, one.parts[_USER_PART]


class SeriesCache:
    """Finds the series of observations, and writes the metadata of new series. Thread-safe.

    namespaces: by format. retention: seconds after which metadata may be removed. Writing existing
    metadata again changes nothing.
    """

    def __init__(
        self,
        formats: EntryFormats,
        namespaces: Mapping[str, UUID],
        clusters: ClusterRules,
        retention: float,
    ) -> None:
        self._formats = formats
        self._namespaces = namespaces
        self._clusters = clusters
        self._forget_after = min(_FORGET_AFTER, retention)
        self._known: dict[SeriesKey, KnownSeries] = {}
        self._since = time.monotonic()
        self._lock = threading.Lock()
        self._contradictions: list[str] = []

    def __len__(self) -> int:
        return len(self._known)

    def find(
        self,
        connection: Connection[Any],
        observations: Iterable[JobstatsObservation],
        admit: Callable[[str], bool],
    ) -> tuple[dict[SeriesKey, KnownSeries], list[RefusedRecord], int]:
        """Return the series of observations, in the connection's transaction.

        After the commit pass them to `remember`. Also return the refused observations: those whose
        id belongs to another entry, and those of new series that are not admitted, with the number
        of the latter. admit: returns whether a server may have one more new series.
        """
        now = time.monotonic()
        if now - self._since > self._forget_after:
            self._known, self._since = {}, now
        known = self._known
        found: dict[SeriesKey, KnownSeries] = {}
        missing: dict[SeriesKey, JobstatsObservation] = {}
        for each in observations:
            key = key_of(each)
            series = known.get(key)
            if series is None:
                missing.setdefault(key, each)
            else:
                found[key] = series
        if not missing:
            return found, [], 0
        written, refused = self._write(connection, missing, admit)
        found |= written
        others = [each for each in observations if key_of(each) not in found]
        over = sum(key_of(each) in refused for each in others)
        return (
            found,
            [
                RefusedRecord(each.number, _OVER if key_of(each) in refused else _FOREIGN)
                for each in others
            ],
            over,
        )

    def remember(self, found: dict[SeriesKey, KnownSeries]) -> int:
        """Cache series with committed metadata. Return the number of new contradictions."""
        with self._lock:
            said, self._contradictions = self._contradictions, []
        for text in said[:_MOST_NAMED]:
            logger.warning("%s; the entry id counts", text, key="jobstats contradictions")
        if not found.keys() <= self._known.keys():
            if len(self._known) + len(found) > _MOST:
                self._known = {}
            self._known.update(found)
        return len(said)

    def _write(
        self,
        connection: Connection[Any],
        missing: dict[SeriesKey, JobstatsObservation],
        admit: Callable[[str], bool],
    ) -> tuple[dict[SeriesKey, KnownSeries], set[SeriesKey]]:
        """Write metadata. Return the series, and the keys of new ones that are not admitted."""
        rows = {key: self._make_row(each) for key, each in missing.items()}
        ids = [row[0] for row in rows.values()]
        existing = {one for (one,) in connection.execute(_EXISTING, [ids])}
        refused = {
            key
            for key, row in rows.items()
            if row[0] not in existing and not admit(missing[key].server)
        }
        rows = {key: row for key, row in rows.items() if key not in refused}
        if not rows:
            return {}, refused
        # Sort the rows to avoid deadlocks between processes.
        columns = list(zip(*sorted(rows.values(), key=lambda row: row[0].bytes), strict=True))
        connection.execute(_INSERT, [list(column) for column in columns])
        stored = {
            series_id: more for series_id, *more in connection.execute(_SELECT, [list(columns[0])])
        }
        found: dict[SeriesKey, KnownSeries] = {}
        contested: list[UUID] = []
        named: dict[UUID, str] = {}
        for key, row in rows.items():
            target, entry_id, kind, user = stored[row[0]]
            if (target, entry_id) != key[:2]:
                continue
            claimed = row[_USER]
            if claimed is not None and user is None:
                named[row[0]] = claimed
            if claimed is not None and user is not None and claimed != user:
                self._note(missing[key], f"user {claimed!r} is {user!r} for another sender")
                if user != str(row[_USER_ID]):
                    contested.append(row[0])
            found[key] = KnownSeries(row[0].bytes, kind)
        if named:
            connection.execute(_NAME_USERS, [list(named), list(named.values())])
        if contested:
            connection.execute(_CONTEST, [contested])
        return found, refused

    def _note(self, each: JobstatsObservation, problem: str) -> None:
        text = f"server {each.server!r}: {each.target}, entry {each.entry_id!r}: {problem}"
        with self._lock:
            self._contradictions.append(text)

    def _make_row(self, each: JobstatsObservation) -> tuple[Any, ...]:
        """Return a row of metadata.

        The parts are those of the entry's id. The sender's count where they agree with these, or
        where the id has none of the formats.
        """
        meaning = self._formats.parse(each.entry_id)
        parts: dict[str, Any] = {
            name: value for name, value in zip(PARTS, each.parts, strict=True) if value is not None
        }
        form = meaning.form or None
        is_malformed = form is None and (each.is_malformed or not parts)
        if form is not None:
            wrong = [
                name
                for name, value in parts.items()
                if name != "user" and not _agrees(value, meaning.parts.get(name))
            ]
            for name in wrong:
                self._note(each, f"{name} {parts[name]!r} is not the entry's")
            # A host name may be cut at its first dot.
            parts = meaning.parts if wrong else {**meaning.parts, **parts}
            if "job_id" in meaning.parts:
                parts["job_id"] = meaning.parts["job_id"]
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
            self._clusters.find(each.target, parts.get("nodename"), form),
        )


def _agrees(value: Any, parsed: Any) -> bool:
    """Return whether a sender's part is the one of the entry's id."""
    text = str(parsed)
    return str(value) == text or text.startswith(f"{value}.")
