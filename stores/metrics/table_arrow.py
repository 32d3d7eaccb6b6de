"""The program `table_arrow`, which converts rows of a table to an Arrow stream.

Its stdin is an ArrowTable in MessagePack. The store itself never loads the library.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import msgspec
import numpy as np


class ArrowRow(msgspec.Struct, frozen=True):
    """A series. names: labels. start, step: s. columns: float64 values."""

    names: dict[str, str]
    start: int
    step: int
    columns: dict[str, bytes]


class ArrowTable(msgspec.Struct, frozen=True):
    """All rows. names, columns: names of the text and the value columns."""

    names: list[str]
    columns: list[str]
    rows: list[ArrowRow]


def write_stream(table: ArrowTable, target: Any) -> None:
    """Write a record batch for each series. Missing values are null."""
    arrow: Any = import_module("pyarrow")
    text = arrow.dictionary(arrow.int32(), arrow.string())
    schema = arrow.schema(
        [arrow.field("time", arrow.timestamp("s", tz="UTC"), nullable=False)]
        + [arrow.field(name, text, nullable=False) for name in table.names]
        + [arrow.field(name, arrow.float64()) for name in table.columns]
    )
    words = {
        name: list(dict.fromkeys(row.names[name] for row in table.rows)) for name in table.names
    }
    numbers = {name: {word: n for n, word in enumerate(found)} for name, found in words.items()}
    dictionaries = {name: arrow.array(found, arrow.string()) for name, found in words.items()}
    with arrow.ipc.new_stream(target, schema) as stream:
        for row in table.rows:
            values = [np.frombuffer(row.columns[name]) for name in table.columns]
            times = row.start + np.arange(len(values[0]), dtype=np.int64) * row.step
            arrays = [arrow.array(times, schema.field("time").type)]
            for name in table.names:
                number = numbers[name][row.names[name]]
                indices = arrow.array(np.full(len(times), number, np.int32))
                arrays.append(arrow.DictionaryArray.from_arrays(indices, dictionaries[name]))
            arrays += [arrow.array(one, arrow.float64(), mask=np.isnan(one)) for one in values]
            stream.write_batch(arrow.RecordBatch.from_arrays(arrays, schema=schema))


def main() -> None:
    """Convert the table on stdin to an Arrow stream on stdout."""
    table = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ArrowTable)
    write_stream(table, sys.stdout.buffer)
