"""Heat maps as SVG: parts over time, and parts at one moment.

The cells of a colour are one path: a grid of 10,000 cells takes about 60 kB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup, escape

from ccagent.views.web.amounts import format_clock
from ccagent.views.web.svg.colours import share_class
from ccagent.views.web.svg.scales import time_ticks
from ccagent.views.web.words import escape_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

_CELL = 14
_GAP = 2


class GridCell(NamedTuple):
    """A square: title, share from 0 to 1, address of its link."""

    title: str
    share: float | None
    link: str = ""


def draw_heat_map(
    rows: NDArray[np.float64],
    names: Sequence[str],
    times: tuple[int, int],
    *,
    height: int = 12,
    label: str = "",
) -> Markup:
    """Return a heat map with one row per name. rows: shares from 0 to 1 over time."""
    count, columns = rows.shape
    paths: dict[str, list[str]] = {}
    for number, row in enumerate(rows.tolist()):
        first, known = 0, share_class(row[0]) if row else ""
        for column in range(1, columns + 1):
            found = share_class(row[column]) if column < columns else ""
            if found != known:
                paths.setdefault(known, []).append(
                    f"M{first} {number}h{column - first}v.9h{first - column}z"
                )
                first, known = column, found
    body = "".join(f'<path class="{name}" d="{"".join(d)}"/>' for name, d in sorted(paths.items()))
    labels = "".join(
        f'<text x="92" y="{number * height + height - 2}">{escape_label(name[-16:])}</text>'
        for number, name in enumerate(names)
    )
    start, end = times
    span = max(1, end - start)
    clock = "".join(
        f'<text x="{100 * (tick - start) / span:.2f}%" y="12">{format_clock(tick, span)}</text>'
        for tick in time_ticks(start, end)
        if 0.03 < (tick - start) / span < 0.97
    )
    size = count * height
    return Markup(  # noqa: S704 - names are escaped
        f'<svg class="names" width="96" height="{size}" aria-hidden="true">{labels}</svg>'
        f'<svg class="heat" role="img" aria-label="{escape_label(label)}" width="100%"'
        f' height="{size}" viewBox="0 0 {max(1, columns)} {max(1, count)}"'
        f' preserveAspectRatio="none">{body}</svg>'
        f'<svg class="times" width="100%" height="16" aria-hidden="true">{clock}</svg>'
    )


def draw_cells(cells: Sequence[GridCell], across: int = 40, label: str = "") -> Markup:
    """Return a grid of squares, each a link with a title."""
    parts: list[str] = []
    for number, cell in enumerate(cells):
        x, y = number % across * _CELL, number // across * _CELL
        square = (
            f'<rect class="{share_class(cell.share)}" x="{x}" y="{y}" width="{_CELL - _GAP}"'
            f' height="{_CELL - _GAP}"><title>{escape_label(cell.title)}</title></rect>'
        )
        if cell.link:
            name = escape_label(cell.title)
            square = f'<a href="{escape(cell.link)}" tabindex="-1" aria-label="{name}">{square}</a>'
        parts.append(square)
    rows = -(-len(cells) // across)
    width, height = across * _CELL - _GAP, max(1, rows * _CELL - _GAP)
    return Markup(  # noqa: S704 - titles and links are escaped
        f'<svg class="cells" role="group" aria-label="{escape_label(label)}"'
        f' viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}">{"".join(parts)}</svg>'
    )
