"""Formats of the responses to /api/query?version=2: JSON, CSV and Arrow."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from ccagent.stores.metrics.table_request import TableRequest


class TableRow(NamedTuple):
    """A series of a response. names: labels. start, step: s. columns: values."""

    names: dict[str, str]
    start: int
    step: int
    statistics: dict[str, Any]
    columns: dict[str, NDArray[np.float64]]


class TableForm(NamedTuple):
    """The format of a response. row: encodes a row; its second argument is true for the first."""

    kind: bytes
    begin: Callable[[TableRequest], bytes]
    row: Callable[[TableRow, bool], bytes]
    end: bytes


def _begin_json(request: TableRequest) -> bytes:
    found = {"cluster": request.cluster, "from": request.start, "to": request.end}
    return orjson.dumps(found)[:-1] + b',"series":['


def _json_row(row: TableRow, is_first: bool) -> bytes:
    columns = {"values" if name == "value" else name: one for name, one in row.columns.items()}
    found = row.names | {"start": row.start, "step": row.step} | row.statistics | columns
    return (b"" if is_first else b",") + orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY)


def _begin_csv(request: TableRequest) -> bytes:
    return b"time,metric,min,mean,max\n" if request.over else b"time,metric,host,value\n"


def _csv_row(row: TableRow, is_first: bool) -> bytes:
    """Return a line for each time. Missing values are empty."""
    del is_first
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [
        [None if value != value else value for value in one.tolist()]  # noqa: PLR0124 - NaN
        for one in row.columns.values()
    ]
    for number, values in enumerate(zip(*columns, strict=True)):
        writer.writerow([row.start + number * row.step, *row.names.values(), *values])
    return text.getvalue().encode()


FORMS = {
    "json": TableForm(b"application/json", _begin_json, _json_row, b"]}\n"),
    "csv": TableForm(b"text/csv; charset=utf-8", _begin_csv, _csv_row, b""),
}
"""The separate program `table_arrow` writes Arrow."""

ARROW_KIND = b"application/vnd.apache.arrow.stream"
