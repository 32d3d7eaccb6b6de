"""Export of observations as CSV, streamed from the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import sql

from ccagent.stores.jobstats.operations import COLUMNS, KINDS
from ccagent.stores.jobstats.query_request import (
    QueryError,
    TimeRange,
    check_names,
    parse_range,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from psycopg import Connection

    from ccagent.stores.jobstats.operations import TargetKind

IDENTITY = ("target", "entry_id", "job_id", "job", "user_id", "user", "nodename", "executable")
"""Columns that identify the origin of an observation. Anonymous exports omit them."""

COUNTERS = tuple(dict.fromkeys(name for kind in KINDS for name in COLUMNS[kind]))

_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}
_PIECE = 1 << 18


class ExportRequest(NamedTuple):
    """A request for all observations of a time range."""

    range: TimeRange
    is_anonymous: bool


def parse_export(values: Mapping[str, str], now: datetime) -> ExportRequest:
    """Parse the parameters of an export. Raise QueryError."""
    check_names(values, frozenset({"last", "from", "to", "anonymous"}))
    anonymous = values.get("anonymous", "0")
    if anonymous not in _BOOLEANS:
        raise QueryError("anonymous: expected 1 or 0")
    return ExportRequest(parse_range(values, now), _BOOLEANS[anonymous])


def export_columns(*, is_anonymous: bool) -> list[str]:
    """Return the names of the columns."""
    return [
        "time_series_id", "kind", *(() if is_anonymous else (*IDENTITY, "server")),
        "timestamp", "since", "snapshot_time", "start_time", "reset",
        *COUNTERS, *(f"{name}_delta" for name in COUNTERS), "others", "others_delta",
    ]  # fmt: skip


def export_rows(connection: Connection[Any], request: ExportRequest) -> Iterator[bytes]:
    """Yield CSV with a header, in pieces."""
    tables = sql.SQL(" UNION ALL ").join(_select(kind, request) for kind in KINDS)
    query = sql.SQL("COPY ({}) TO STDOUT (FORMAT CSV, HEADER)").format(tables)
    connection.execute("SET TIME ZONE 'UTC'")
    parts: list[bytes] = []
    size = 0
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        for part in copy:
            parts.append(bytes(part))
            size += len(part)
            if size > _PIECE:
                yield b"".join(parts)
                parts, size = [], 0
    yield b"".join(parts)


def _select(kind: TargetKind, request: ExportRequest) -> sql.Composed:
    columns: list[sql.Composable] = []
    for name in export_columns(is_anonymous=request.is_anonymous):
        if name == "kind":
            columns.append(sql.SQL("{} AS kind").format(sql.Literal(kind)))
        elif name in IDENTITY:
            columns.append(sql.SQL("m.{}").format(sql.Identifier(name)))
        elif (
            name.removesuffix("_delta") in COUNTERS
            and name.removesuffix("_delta") not in COLUMNS[kind]
        ):
            columns.append(sql.SQL("NULL::numeric AS {}").format(sql.Identifier(name)))
        else:
            columns.append(sql.SQL("o.{}").format(sql.Identifier(name)))
    return sql.SQL(
        "SELECT {} FROM {} o JOIN metadata m USING (time_series_id) "
        "WHERE o.timestamp > {} AND o.timestamp <= {}"
    ).format(
        sql.SQL(", ").join(columns),
        sql.Identifier(kind),
        sql.Literal(request.range.begins),
        sql.Literal(request.range.ends),
    )
