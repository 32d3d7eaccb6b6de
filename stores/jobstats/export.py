"""Exports of observations: CSV from the database; files of CSV, or of Parquet with types."""

from __future__ import annotations

import io
import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from psycopg import sql

from ccagent.errors import ConfigurationError
from ccagent.machine.interpreter import install_command
from ccagent.service.private_files import open_private
from ccagent.stores.jobstats.query_request import (
    QueryError,
    TimeRange,
    check_names,
    parse_range,
)
from ccagent.stores.jobstats.schema import COLUMNS, KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from psycopg import Connection

    from ccagent.stores.jobstats.schema import TargetKind

_IDENTITY = ("target", "entry_id", "job_id", "job", "user_id", "user", "nodename", "executable")
"""Columns that identify the origin of an observation. Anonymous exports omit them."""

_COUNTERS = tuple(dict.fromkeys(name for kind in KINDS for name in COLUMNS[kind]))

_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}
_PIECE = 1 << 18
_TIMES = ("timestamp", "since", "snapshot_time", "start_time")
_NUMBERS = ("job_id", "user_id")


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


def _list_columns(*, is_anonymous: bool) -> list[str]:
    """Return the names of the columns."""
    return [
        "time_series_id", "kind", *(() if is_anonymous else (*_IDENTITY, "server")),
        "timestamp", "since", "snapshot_time", "start_time", "reset",
        *_COUNTERS, *(f"{name}_delta" for name in _COUNTERS), "others", "others_delta",
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
    for name in _list_columns(is_anonymous=request.is_anonymous):
        if name == "kind":
            columns.append(sql.SQL("{} AS kind").format(sql.Literal(kind)))
        elif name in _IDENTITY:
            columns.append(sql.SQL("m.{}").format(sql.Identifier(name)))
        elif (
            name.removesuffix("_delta") in _COUNTERS
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


def write_export(pieces: Iterator[bytes], path: str, *, is_anonymous: bool) -> int:
    """Write the pieces of an export to a file. Return the number of rows.

    The file is replaced when the export is complete. Raise ConfigurationError, and the errors of
    the pieces.
    """
    is_parquet = path.endswith(".parquet")
    if not is_parquet and not path.endswith(".csv"):
        raise ConfigurationError(f"{path}: expected a name that ends with .parquet or .csv")
    if is_parquet and not find_spec("pyarrow"):
        raise ConfigurationError(f"Parquet needs pyarrow: {install_command('pyarrow')}")
    new = f"{path}.{os.getpid()}.part"
    try:
        # O_EXCL: only a newly created file is written and removed.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(open_private(new, flags), "wb") as file:
            try:
                if is_parquet:
                    count = _write_parquet(pieces, file, is_anonymous=is_anonymous)
                else:
                    count = _write_csv(pieces, file)
                file.flush()
                os.replace(new, path)
            except BaseException:
                os.unlink(new)
                raise
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
    return count


def _write_csv(pieces: Iterator[bytes], file: BinaryIO) -> int:
    lines = 0
    for piece in pieces:
        lines += piece.count(b"\n")
        file.write(piece)
    return max(0, lines - 1)


def _write_parquet(pieces: Iterator[bytes], file: BinaryIO, *, is_anonymous: bool) -> int:
    pa: Any = import_module("pyarrow")
    csv: Any = import_module("pyarrow.csv")
    parquet: Any = import_module("pyarrow.parquet")

    types: dict[str, Any] = dict.fromkeys(_list_columns(is_anonymous=is_anonymous), pa.string())
    types |= dict.fromkeys(_TIMES, pa.timestamp("us", tz="UTC"))
    types |= dict.fromkeys(_NUMBERS, pa.int64())
    types |= dict.fromkeys((*_COUNTERS, *(f"{name}_delta" for name in _COUNTERS)), pa.uint64())
    reader = csv.open_csv(
        io.BufferedReader(_PieceReader(pieces), 1 << 20),
        convert_options=csv.ConvertOptions(
            column_types=types,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            timestamp_parsers=["%Y-%m-%d %H:%M:%S%z", csv.ISO8601],
        ),
        parse_options=csv.ParseOptions(newlines_in_values=True),
    )
    rows: int = 0
    with parquet.ParquetWriter(file, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


class _PieceReader(io.RawIOBase):
    """A file object that reads from an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
