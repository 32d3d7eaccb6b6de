"""The roofline of a job: operations per second over operations per byte of memory traffic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup, escape

from ccagent.views.amounts import format_number, format_quantity
from ccagent.views.web.data.buckets import make_grid, mean_of, read_means
from ccagent.views.web.drawing import HEIGHT, share_class
from ccagent.views.web.rendering import escape_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries, StoreLevel
    from ccagent.views.web.context import PageSources
    from ccagent.views.web.data.buckets import TimeGrid

    Values = NDArray[np.float64]

_FLOPS, _BANDWIDTH = "flops_any", "mem_bw"
_POINTS = 120
_SIZE = 1000
"""Width and height of the drawing in units of its paths."""

_MARGIN = 14


class Roofline(NamedTuple):
    """A drawing, and a sentence with its figures."""

    drawing: Markup
    text: str


def make_roofline(
    sources: PageSources, nodes: Sequence[StoreLevel], start: int, end: int
) -> Roofline | None:
    """Return the roofline of nodes over a time; None if they send no operations or no traffic."""
    flops = [one for node in nodes for one in node.find_series(_FLOPS)]
    traffic = [one for node in nodes for one in node.find_series(_BANDWIDTH)]
    if not flops or not traffic:
        return None
    step = min(one.group.frequency for one in (*flops, *traffic))
    grid = make_grid(start, end, step, _POINTS)
    operations = _sum(flops, grid) * sources.metric(_FLOPS).factor
    moved = _sum(traffic, grid) * sources.metric(_BANDWIDTH).factor
    with np.errstate(invalid="ignore", divide="ignore"):
        intensity = operations / moved
    is_there = (operations > 0) & (moved > 0) & np.isfinite(intensity) & (intensity > 0)
    if not is_there.any():
        return None
    mean = float(mean_of(operations[is_there], 0)), float(mean_of(moved[is_there], 0))
    text = (
        f"mean {format_quantity(mean[0], 'Flops/s')} at {format_number(mean[0] / mean[1])} Flops/B;"
        f" highest {format_quantity(float(operations[is_there].max()), 'Flops/s')} and"
        f" {format_quantity(float(moved[is_there].max()), 'B/s')}"
    )
    return Roofline(
        _draw(intensity, operations, float(moved[is_there].max()), is_there, text), text
    )


def _sum(series: Sequence[StoredSeries], grid: TimeGrid) -> Values:
    """Return the sum of series at each time at which all that send have a value."""
    rows = read_means(series, grid)
    rows = rows[~np.isnan(rows).all(axis=1)]
    return rows.sum(axis=0) if len(rows) else np.full(grid.size, np.nan)


def _decades(values: Values) -> tuple[int, int]:
    """Return the powers of ten around positive values, at most 12 apart."""
    high = math.ceil(math.log10(float(values.max())) + 1e-9)
    low = math.floor(math.log10(float(values.min())) - 1e-9)
    return max(low, high - 12), max(high, low + 1)


def _draw(
    intensity: Values, operations: Values, bandwidth: float, is_there: NDArray[np.bool_], text: str
) -> Markup:
    """Return the drawing: a dot per time, from dark (first) to light (last), and both roofs."""
    left, right = _decades(intensity[is_there])
    bottom, top = _decades(operations[is_there])

    def across(value: float) -> float:
        return _SIZE * (math.log10(value) - left) / (right - left)

    def down(value: float) -> float:
        return _SIZE * (top - math.log10(value)) / (top - bottom)

    dots: dict[str, list[str]] = {}
    for place in np.flatnonzero(is_there).tolist():
        name = share_class(min(0.999, place / len(intensity)))
        x, y = across(float(intensity[place])), down(float(operations[place]))
        dots.setdefault(name, []).append(f"M{x - 4:.0f} {y - 15:.0f}h8v30h-8z")
    grid = "".join(f"M{_SIZE * n / (right - left):.0f} 0V{_SIZE}" for n in range(right - left + 1))
    grid += "".join(f"M0 {_SIZE * n / (top - bottom):.0f}H{_SIZE}" for n in range(top - bottom + 1))
    highest = float(operations[is_there].max())
    ridge = highest / bandwidth
    # The roofs: the highest traffic, then the highest rate of operations.
    start = 10.0**left
    roof = f"M0 {down(max(bandwidth * start, 10.0**bottom)):.0f}"
    if bandwidth * start < 10.0**bottom:
        roof = f"M{across(10.0**bottom / bandwidth):.0f} {_SIZE}"
    if ridge < 10.0**right:
        roof += f"L{across(max(ridge, start)):.0f} {down(highest):.0f}H{_SIZE}"
    else:
        roof += f"L{_SIZE} {down(max(bandwidth * 10.0**right, 10.0**bottom)):.0f}"
    rows = [10.0**power for power in range(bottom, top + 1)]
    labels = "".join(
        f'<text x="66" y="{_MARGIN + HEIGHT * down(one) / _SIZE + 4:.0f}">'
        f"{escape(format_quantity(one, 'F/s'))}</text>"
        for one in rows
    )
    ticks = "".join(
        f'<text x="{100 * (power - left) / (right - left):.1f}%" y="12">'
        f"{format_number(10.0**power)}</text>"
        for power in range(left, right + 1)
    )
    body = "".join(f'<path class="{name}" d="{"".join(d)}"/>' for name, d in sorted(dots.items()))
    label = escape_label(f"Roofline: {text}")
    height, edge = HEIGHT + 2 * _MARGIN, round(_SIZE * _MARGIN / HEIGHT)
    return Markup(  # noqa: S704 - texts in it are escaped above
        f'<svg class="values" width="70" height="{height}" aria-hidden="true">{labels}</svg>'
        f'<svg class="roof" role="img" aria-label="{label}" width="100%"'
        f' height="{height}" viewBox="0 {-edge} {_SIZE} {_SIZE + 2 * edge}"'
        f' preserveAspectRatio="none"><path class="grid" d="{grid}"/>'
        f'<path class="limit" d="{roof}"/>{body}</svg>'
        f'<svg class="times" width="100%" height="16" aria-hidden="true">{ticks}</svg>'
    )
