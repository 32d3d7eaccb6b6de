"""Tables of any agent's records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.records.envelopes import (
    ClusterEnvelope,
    JobsEnvelope,
    SampleEnvelope,
    SysinfoEnvelope,
)
from ccagent.records.json_encoding import JsonArray
from ccagent.records.message import JsonRecord, LineRecord
from ccagent.records.points import Point
from ccagent.views.table.layout import TableColumn, format_rows
from ccagent.views.terminal import clean, cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccagent.records.message import Record
    from ccagent.views.terminal import Style

_MOST_ITEMS = 1000


def format_records(
    records: Iterable[Record], units: Mapping[str, str], width: int, style: Style
) -> list[str]:
    """Return the lines of all records of a sample. units: by metric name."""
    lines: list[str] = []
    points: list[Point] = []
    for record in records:
        if isinstance(record, Point):
            points.append(record)
            continue
        lines += [""] * bool(lines) + _format_one(record, width, style)
    if points:
        from ccagent.views.table.metrics import format_points

        lines += [""] * bool(lines) + format_points(points, units, width, style)
    return [line if "\x1b" in line else cut(line, width) for line in lines]


def _format_one(record: Record, width: int, style: Style) -> list[str]:
    match record:
        case SampleEnvelope() if record.data is not None:
            from ccagent.views.table.sample import format_sample

            return format_sample(record.data.attributes, width, style)
        case SysinfoEnvelope() if record.data is not None:
            from ccagent.views.table.sysinfo import format_sysinfo

            return format_sysinfo(record.data.attributes, width, style)
        case JobsEnvelope() if record.data is not None:
            from ccagent.views.table.slurm import format_jobs

            return format_jobs(record.data.attributes, width, style)
        case ClusterEnvelope() if record.data is not None:
            from ccagent.views.table.slurm import format_cluster

            return format_cluster(record.data.attributes, width, style)
        case SampleEnvelope() | SysinfoEnvelope() | JobsEnvelope() | ClusterEnvelope():
            return [clean(error.detail) for error in record.errors]
        case JsonArray():
            return _format_items(record, width, style)
        case LineRecord():
            return [clean(record.encode_line()[1])]
        case JsonRecord():
            return [clean(record.encode_json()[1].decode())]
        case _:
            return [clean(record.label())]


def _format_items(array: JsonArray, width: int, style: Style) -> list[str]:
    """Return a table of an array of flat objects, with one column per key."""
    head = f"{array.kind}: {len(array.items)} records"
    if not array.items:
        return [head]
    names = list(dict.fromkeys(name for item in array.items for name in item))
    columns = [TableColumn(name.upper(), rank=place, most=24) for place, name in enumerate(names)]
    rows = [
        ["-" if item.get(name) is None else str(item.get(name)) for name in names]
        for item in array.items[:_MOST_ITEMS]
    ]
    return [head, "", *format_rows(columns, rows, width, style)]
