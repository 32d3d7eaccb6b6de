"""A table of points, one line per metric and scope."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccagent.views.table.layout import TableColumn, format_rows
from ccagent.views.units import short_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccagent.records.points import Point
    from ccagent.views.terminal import Style

_COLUMNS = (
    TableColumn("METRIC"), TableColumn("UNIT", rank=1), TableColumn("OF", most=40),
    TableColumn("VALUE", True), TableColumn("MIN", True, 3), TableColumn("MAX", True, 3),
    TableColumn("COUNT", True, 2),
)  # fmt: skip
_OWN = frozenset({"cluster", "hostname", "type", "type-id", "stype", "stype-id"})


def format_points(
    points: Iterable[Point], units: Mapping[str, str], width: int, style: Style
) -> list[str]:
    """Return one line per metric and scope type, with the mean over the scope ids.

    units: by metric. Values of jobs, and values with additional tags, have a line each.
    """
    found: dict[tuple[str, str], list[float]] = {}
    place = ""
    for point in points:
        place = place or f"{point.tags.get('hostname', '')} of {point.tags.get('cluster', '')}"
        values = found.setdefault((point.name, _describe_part(point)), [])
        if math.isfinite(point.value):  # line protocol also omits non-finite values
            values.append(float(point.value))
    rows = [
        [
            name, units.get(name, ""), part,
            short_number(sum(values) / len(values)) if values else "-",
            short_number(min(values)) if len(values) > 1 else "",
            short_number(max(values)) if len(values) > 1 else "",
            str(len(values)) if len(values) > 1 else "",
        ]
        for (name, part), values in sorted(found.items(), key=lambda item: item[0])
    ]  # fmt: skip
    if not rows:
        return ["no values"]
    return [place, "", *format_rows(_COLUMNS, rows, width, style)]


def _describe_part(point: Point) -> str:
    tags = point.tags
    kind, part = tags.get("type", "node"), tags.get("stype", "")
    text = kind
    if part:
        text = f"{part} {tags.get('stype-id', '')}"
        if kind != "node":
            text = f"{kind} {tags.get('type-id', '')} {text}"
    others = [f"{name}={value}" for name, value in sorted(tags.items()) if name not in _OWN]
    return " ".join([text, *others])
