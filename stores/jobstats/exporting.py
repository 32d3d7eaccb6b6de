"""Exports to files: CSV, or Parquet with typed columns."""

from __future__ import annotations

import io
import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, BinaryIO

from ccagent.errors import ConfigurationError
from ccagent.machine.interpreter import install_command
from ccagent.service.private_files import open_private
from ccagent.stores.jobstats.client import read_export
from ccagent.stores.jobstats.export_query import COUNTERS, export_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.jobstats.client import StorePlace

_TIMES = ("timestamp", "since", "snapshot_time", "start_time")
_NUMBERS = ("job_id", "user_id")


def write_export(place: StorePlace, values: dict[str, str], path: str) -> int:
    """Write an export to a file. Return the number of rows.

    The file is replaced when the export is complete. Raise ConfigurationError, UnansweredError.
    """
    is_parquet = path.endswith(".parquet")
    if not is_parquet and not path.endswith(".csv"):
        raise ConfigurationError(f"{path}: expected a name that ends with .parquet or .csv")
    if is_parquet and not find_spec("pyarrow"):
        raise ConfigurationError(f"Parquet needs pyarrow: {install_command('pyarrow')}")
    new = f"{path}.{os.getpid()}.part"
    try:
        pieces = read_export(place, values)
        # O_EXCL: only a newly created file is written and removed.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(open_private(new, flags), "wb") as file:
            try:
                if is_parquet:
                    is_anonymous = values.get("anonymous") == "1"
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

    types: dict[str, Any] = dict.fromkeys(export_columns(is_anonymous=is_anonymous), pa.string())
    types |= dict.fromkeys(_TIMES, pa.timestamp("us", tz="UTC"))
    types |= dict.fromkeys(_NUMBERS, pa.int64())
    types |= dict.fromkeys((*COUNTERS, *(f"{name}_delta" for name in COUNTERS)), pa.uint64())
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
