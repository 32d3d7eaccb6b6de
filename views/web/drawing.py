"""Drawings as SVG: lines over time, sparklines, heat maps, meters.

Colours are distinguishable for colour-blind people: Okabe and Ito for series, viridis for shares.
Pages use CSS classes, which dark mode can change: `s0` to `s7` for series, `h0` to `h9` for shares,
`hx` for missing values. The cells of a heat map with one colour are one path: 10,000 cells take
about 60 kB.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup, escape

from ccagent.views.amounts import format_clock, format_quantity, short_time
from ccagent.views.web.rendering import escape_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ccagent.views.web.data.buckets import SeriesBuckets, TimeGrid


SERIES = 8
"""Number of colours of series. The ninth series has the first colour, with dashes."""

SHARES = 10


def series_class(number: int) -> str:
    """Return the CSS classes of a series, for colour and dashes."""
    dashes = number // SERIES % 3
    return f"s{number % SERIES}" + (f" d{dashes}" if dashes else "")


def share_class(share: float | None) -> str:
    """Return the CSS class of a share from 0 to 1; `hx` if it is missing."""
    if share is None or not math.isfinite(share):
        return "hx"
    return f"h{min(SHARES - 1, max(0, int(share * SHARES)))}"


_TIMES = (
    10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
    1209600, 2592000,
)  # fmt: skip
_MOST_TICKS = 40
_HOUR = 3600
LARGEST, _SMALLEST = 1e300, 1e-300
"""Limits of values: beyond them floating point numbers have no round steps."""


def find_top(largest: float) -> float:
    """Return a round upper end for an axis from 0 that includes a value."""
    if not math.isfinite(largest) or largest < _SMALLEST:
        return 1.0
    largest = min(largest, LARGEST)
    power = 10.0 ** math.floor(math.log10(largest))
    for step in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0):
        if largest <= step * power * (1 + 1e-9):
            return step * power
    return 10.0 * power


def value_ticks(top: float) -> list[float]:
    """Return about four round values from 0 to `top`."""
    raw = top / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(one * power for one in (1.0, 2.0, 2.5, 5.0, 10.0) if one * power >= raw * 0.999)
    return [n * step for n in range(int(top / step + 1e-9) + 1)]


def time_ticks(start: float, end: float, zone: tzinfo | None) -> list[int]:
    """Return about six round times between start and end in a zone; None: of this machine."""
    span = max(1.0, end - start)
    step = next((one for one in _TIMES if span / one <= 6), _TIMES[-1])
    offset = _offset(start, zone)
    first = -int(-(start + offset) // step) * step - offset
    ticks = list(range(first, int(end) + 2 * _HOUR, step))[:_MOST_TICKS]
    if step > _HOUR:  # after a change of the clock the same time of day is earlier or later
        ticks = [one + offset - _offset(one, zone) for one in ticks]
    return [one for one in ticks if start <= one <= end]


def _offset(moment: float, zone: tzinfo | None) -> int:
    """Return the seconds by which a zone is ahead of UTC at a time."""
    offset = datetime.fromtimestamp(moment, zone).astimezone(zone).utcoffset()
    return int(offset.total_seconds()) if offset else 0


_FEWEST_BYTES = 4.0
"""Smallest end of an axis of bytes: its steps are whole bytes."""

ELAPSED = timezone(timedelta(0), "elapsed")
"""Instead of a zone: times are seconds since a start, which is 0."""

HEIGHT = 150
"""Height of the plot area in pixels."""

_ROWS = 500
"""Height of the plot area in units of the paths."""

_MARGIN = 14


class PlotLine(NamedTuple):
    """A line of a plot, with a band from minimum to maximum. number: of its colour."""

    name: str
    values: SeriesBuckets
    number: int = 0


class PlotLimit(NamedTuple):
    """A limit, drawn as a dashed line."""

    name: str
    value: float


def draw_lines(
    lines: Sequence[PlotLine],
    grid: TimeGrid,
    unit: str,
    zone: tzinfo | None,
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
    if unit == "B":
        upper = max(upper, _FEWEST_BYTES)
    ticks = [tick * scale for tick in value_ticks(upper / scale)]
    values = "".join(
        f'<text x="52" y="{_MARGIN + HEIGHT * (1 - tick / upper) + 4:.0f}">'
        f"{escape(format_quantity(tick, unit))}</text>"
        for tick in ticks
    )
    body = (
        _draw_grid(ticks, upper, grid, zone)
        + "".join(_draw_line(line, upper) for line in lines)
        + "".join(_draw_limit(one, upper, grid) for one in limits)
    )
    height = HEIGHT + 2 * _MARGIN
    return Markup(  # noqa: S704 - texts in it are escaped above
        f'<svg class="values" width="56" height="{height}" aria-hidden="true">{values}</svg>'
        f'<svg class="lines" role="img" aria-label="{escape_label(label)}" width="100%"'
        f' height="{height}" viewBox="0 {-_ROWS * _MARGIN / HEIGHT:.0f} {max(1, grid.size - 1)}'
        f' {_ROWS * height / HEIGHT:.0f}" preserveAspectRatio="none">{body}</svg>'
        f"{_draw_times(grid.start, grid.end, zone)}"
    )


def _draw_times(start: int, end: int, zone: tzinfo | None) -> str:
    """Return the labels of a time axis."""
    span = max(1, end - start)
    labels = "".join(
        f'<text x="{100 * (tick - start) / span:.2f}%" y="12">'
        f"{short_time(tick) if zone is ELAPSED else format_clock(tick, span, zone)}</text>"
        for tick in time_ticks(start, end, zone)
        if 0.03 < (tick - start) / span < 0.97
    )
    return f'<svg class="times" width="100%" height="16" aria-hidden="true">{labels}</svg>'


def _scale(highest: float, unit: str) -> float:
    """Return the factor of an axis' unit prefix, for round steps with this prefix.

    Only prefixes of memory need it: others are powers of ten.
    """
    if unit != "B" or highest < 1024:
        return 1.0
    return float(1024 ** int(np.log(highest) / np.log(1024)))


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


def _draw_grid(ticks: Sequence[float], upper: float, grid: TimeGrid, zone: tzinfo | None) -> str:
    right = max(1, grid.size - 1)
    rows = "".join(f"M0 {_ROWS * (1 - tick / upper):.0f}H{right}" for tick in ticks)
    columns = "".join(
        f"M{(tick - grid.start) / grid.step:.1f} 0V{_ROWS}"
        for tick in time_ticks(grid.start, grid.end, zone)
    )
    return f'<path class="grid" d="{rows}{columns}"/>'


def _draw_line(line: PlotLine, upper: float) -> str:
    low, mean, high = line.values
    name = series_class(line.number)
    band = ""
    if low is not high:
        band = f'<path class="band {name}" d="{band_path(low, high, upper)}"/>'
    title = f"<title>{escape_label(line.name)}</title>"
    return f'{band}<path class="line {name}" d="{line_path(mean, upper)}">{title}</path>'


def _draw_limit(limit: PlotLimit, upper: float, grid: TimeGrid) -> str:
    height = _ROWS * (1 - min(limit.value, upper) / upper)
    return f'<path class="limit" d="M0 {height:.0f}H{max(1, grid.size - 1)}"/>'


_CELL = 14
_GAP = 2
_ACROSS = 40


class GridCell(NamedTuple):
    """A square: title, share from 0 to 1, address of its link."""

    title: str
    share: float | None
    link: str


class TimedDrawing(NamedTuple):
    """A drawing, and the start and end of the time axis below it. times: None: no axis."""

    body: Markup
    times: tuple[int, int] | None = None

    def draw(self, zone: tzinfo | None) -> Markup:
        """Return the drawing with its axis."""
        if self.times is None:
            return self.body
        return self.body + Markup(_draw_times(*self.times, zone))  # noqa: S704 - times only


def draw_heat_map(
    rows: NDArray[np.float64],
    names: Sequence[str],
    times: tuple[int, int],
    *,
    height: int = 12,
    label: str = "",
) -> TimedDrawing:
    """Return a heat map with one row per name. rows: shares from 0 to 1 over time."""
    count, columns = rows.shape
    paths: dict[str, list[str]] = {}
    for number, row in enumerate(rows.tolist()):
        column = 0
        for name, same in groupby(row, key=share_class):
            width = len(list(same))
            paths.setdefault(name, []).append(f"M{column} {number}h{width}v.9h{-width}z")
            column += width
    cells = "".join(f'<path class="{name}" d="{"".join(d)}"/>' for name, d in sorted(paths.items()))
    labels = "".join(
        f'<text x="92" y="{number * height + height // 2 + 4}">{escape_label(name[-16:])}</text>'
        for number, name in enumerate(names)
    )
    size = count * height
    body = Markup(  # noqa: S704 - names are escaped
        f'<svg class="names" width="96" height="{size}" aria-hidden="true">{labels}</svg>'
        f'<svg class="heat" role="img" aria-label="{escape_label(label)}" width="100%"'
        f' height="{size}" viewBox="0 0 {max(1, columns)} {max(1, count)}"'
        f' preserveAspectRatio="none">{cells}</svg>'
    )
    return TimedDrawing(body, times)


def draw_cells(cells: Sequence[GridCell], label: str = "") -> Markup:
    """Return a grid of squares, each a link with a title."""
    parts: list[str] = []
    for number, cell in enumerate(cells):
        x, y = number % _ACROSS * _CELL, number // _ACROSS * _CELL
        name = escape_label(cell.title)
        square = (
            f'<rect class="{share_class(cell.share)}" x="{x}" y="{y}" width="{_CELL - _GAP}"'
            f' height="{_CELL - _GAP}"><title>{name}</title></rect>'
        )
        parts.append(
            f'<a href="{escape(cell.link)}" tabindex="-1" aria-label="{name}">{square}</a>'
        )
    rows = -(-len(cells) // _ACROSS)
    width, height = _ACROSS * _CELL - _GAP, max(1, rows * _CELL - _GAP)
    return Markup(  # noqa: S704 - titles and links are escaped
        f'<svg class="cells" role="group" aria-label="{escape_label(label)}"'
        f' viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}">{"".join(parts)}</svg>'
    )


def draw_meter(share: float | None, *, state: str = "ok") -> Markup:
    """Return a bar for a share from 0 to 1; hatched if the share is None.

    state: `ok`, `hint` or `bad`, selects the colour.
    """
    if share is None or not math.isfinite(share):
        bar = '<rect class="unknown" width="100" height="10"/>'
    else:
        width = min(100.0, max(0.0, 100 * share))
        bar = f'<rect class="fill {state}" width="{width:.1f}" height="10"/>'
    return Markup(  # noqa: S704 - nothing but numbers and known words
        '<svg class="meter" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="10"/>{bar}</svg>'
    )
