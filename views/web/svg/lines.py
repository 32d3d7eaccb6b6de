"""Lines over time as SVG: bands from minimum to maximum, gaps for missing values, limits."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup, escape

from ccagent.views.web.amounts import base_of, format_clock, format_quantity
from ccagent.views.web.svg.colours import series_class
from ccagent.views.web.svg.scales import LARGEST, find_top, time_ticks, value_ticks
from ccagent.views.web.words import escape_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ccagent.views.web.data.buckets import SeriesBuckets, TimeGrid

HEIGHT = 150
"""Height of the plot area in pixels."""

_ROWS = 500
"""Height of the plot area in units of the paths."""

_MARGIN = 14


class PlotLine(NamedTuple):
    """A line of a plot. number: of its colour. has_band: also show minimum and maximum."""

    name: str
    values: SeriesBuckets
    number: int = 0
    has_band: bool = True


class PlotLimit(NamedTuple):
    """A limit, drawn as a dashed line."""

    name: str
    value: float


def draw_lines(
    lines: Sequence[PlotLine],
    grid: TimeGrid,
    unit: str,
    *,
    limits: Sequence[PlotLimit] = (),
    top: float | None = None,
    label: str = "",
) -> Markup:
    """Return a plot as SVG: labels of values, lines, labels of times."""
    highest = max(
        [*(_largest(line.values.high) for line in lines), *(one.value for one in limits)],
        default=0.0,
    )
    highest = min(highest, LARGEST)
    scale = _scale(highest, unit)
    upper = top if top and highest <= top * 1.001 else find_top(highest / scale) * scale
    ticks = [tick * scale for tick in value_ticks(upper / scale)]
    values = "".join(
        f'<text x="52" y="{_MARGIN + HEIGHT * (1 - tick / upper) + 4:.0f}">'
        f"{escape(format_quantity(tick, unit))}</text>"
        for tick in ticks
    )
    span = max(1, grid.end - grid.start)
    times = "".join(
        f'<text x="{100 * (tick - grid.start) / span:.2f}%" y="12">'
        f"{format_clock(tick, span)}</text>"
        for tick in time_ticks(grid.start, grid.end)
        if 0.03 < (tick - grid.start) / span < 0.97
    )
    body = (
        _draw_grid(ticks, upper, grid)
        + "".join(_draw_line(line, upper) for line in lines)
        + "".join(_draw_limit(one, upper, grid) for one in limits)
    )
    height = HEIGHT + 2 * _MARGIN
    return Markup(  # noqa: S704 - texts in it are escaped above
        f'<svg class="values" width="56" height="{height}" aria-hidden="true">{values}</svg>'
        f'<svg class="lines" role="img" aria-label="{escape_label(label)}" width="100%"'
        f' height="{height}" viewBox="0 {-_ROWS * _MARGIN / HEIGHT:.0f} {max(1, grid.size - 1)}'
        f' {_ROWS * height / HEIGHT:.0f}" preserveAspectRatio="none">{body}</svg>'
        f'<svg class="times" width="100%" height="16" aria-hidden="true">{times}</svg>'
    )


def _scale(highest: float, unit: str) -> float:
    """Return the factor of an axis' unit prefix, for round steps with this prefix."""
    base = base_of(unit)
    if base == 1000 or highest < base:
        return 1.0
    return float(base ** int(np.log(highest) / np.log(base)))


def draw_sparkline(
    values: NDArray[np.float64], top: float | None = None, label: str = ""
) -> Markup:
    """Return a sparkline: a small line without axes."""
    highest = _largest(values)
    upper = top if top and highest <= top * 1.001 else find_top(highest)
    path = line_path(values, upper, 100)
    return Markup(  # noqa: S704 - the label is escaped
        f'<svg class="spark" role="img" aria-label="{escape_label(label)}"'
        f' viewBox="0 -4 {max(1, len(values) - 1)} 108" preserveAspectRatio="none">'
        f'<path class="line s0" d="{path}"/></svg>'
    )


def line_path(values: NDArray[np.float64], upper: float, rows: int = _ROWS) -> str:
    """Return the path of a line, one step to the right per value, interrupted at gaps."""
    heights = _heights(values, upper, rows)
    parts: list[str] = []
    for first, last in _runs(values):
        points = heights[first:last]
        if last - first == 1:  # half a step to each side: visible also at the edge
            parts.append(f"M{first - 0.5} {points[0]}h1")
            continue
        parts.append(f"M{first} {points[0]}")
        parts.append("".join(_moves(points)))
    return "".join(parts)


def band_path(low: NDArray[np.float64], high: NDArray[np.float64], upper: float) -> str:
    """Return the path of the area between two lines."""
    tops, bottoms = _heights(high, upper, _ROWS), _heights(low, upper, _ROWS)
    parts: list[str] = []
    for first, last in _runs(high):
        if last - first < 2:
            continue
        back = bottoms[first:last][::-1]
        parts.append(f"M{first} {tops[first]}{''.join(_moves(tops[first:last]))}V{back[0]}")
        parts.append("".join(f"l-1 {b - a}" for a, b in pairwise(back)) + "z")
    return "".join(parts)


def _moves(points: list[int]) -> list[str]:
    """Return relative steps from point to point. Equal points are joined into one step."""
    found: list[str] = []
    level = 0
    for a, b in pairwise(points):
        if a == b:
            level += 1
            continue
        if level:
            found.append(f"h{level}")
            level = 0
        step = b - a
        found.append(f"l1{step}" if step < 0 else f"l1 {step}")
    if level:
        found.append(f"h{level}")
    return found


def _heights(values: NDArray[np.float64], upper: float, rows: int) -> list[int]:
    filled = np.clip(np.nan_to_num(values), 0, upper * 1.05)
    found: list[int] = np.rint(rows - filled / upper * rows).astype(int).tolist()
    return found


def _runs(values: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return the index ranges [first, last) without missing values."""
    present = np.concatenate(([False], ~np.isnan(values), [False])).astype(np.int8)
    edges = np.flatnonzero(np.diff(present)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _largest(values: NDArray[np.float64]) -> float:
    found = float(np.fmax.reduce(values)) if values.size else 0.0
    return found if np.isfinite(found) else 0.0


def _draw_grid(ticks: Sequence[float], upper: float, grid: TimeGrid) -> str:
    right = max(1, grid.size - 1)
    rows = "".join(f"M0 {_ROWS * (1 - tick / upper):.0f}H{right}" for tick in ticks)
    columns = "".join(
        f"M{(tick - grid.start) / grid.step:.1f} 0V{_ROWS}"
        for tick in time_ticks(grid.start, grid.end)
    )
    return f'<path class="grid" d="{rows}{columns}"/>'


def _draw_line(line: PlotLine, upper: float) -> str:
    low, mean, high = line.values
    name = series_class(line.number)
    band = ""
    if line.has_band and low is not high:
        band = f'<path class="band {name}" d="{band_path(low, high, upper)}"/>'
    title = f"<title>{escape_label(line.name)}</title>"
    return f'{band}<path class="line {name}" d="{line_path(mean, upper)}">{title}</path>'


def _draw_limit(limit: PlotLimit, upper: float, grid: TimeGrid) -> str:
    height = _ROWS * (1 - min(limit.value, upper) / upper)
    return f'<path class="limit" d="M0 {height:.0f}H{max(1, grid.size - 1)}"/>'
