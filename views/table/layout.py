"""Tables that fit a terminal: empty columns are dropped, then the least important columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.views.terminal import Style, clean, cut, fill, width_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_GAP = 1
_NOTHING = frozenset({"", "-"})
_FEWEST = 4
"""Minimum width of a text column."""


class TableColumn(NamedTuple):
    """A column. is_right: right-aligned.

    rank: 0 is never dropped; on a narrow terminal the highest rank is dropped first. most: maximum
    width; 0: no maximum, and the last column gets the remaining width.
    """

    title: str
    is_right: bool = False
    rank: int = 0
    most: int = 0
    least: int = 0


def format_rows(
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[str]],
    width: int,
    style: Style,
    *,
    is_ascii: bool = False,
    keeps_empty: bool = False,
) -> list[str]:
    """Return a title line and a line per row, at most `width` columns wide.

    keeps_empty: keep columns without values, for a stable screen.
    """
    cells = [[clean(cell, is_ascii=is_ascii) for cell in row] for row in rows]
    wide = [
        max([width_of(column.title), *(width_of(row[number]) for row in cells)])
        for number, column in enumerate(columns)
    ]
    wide = [
        max(column.least, min(size, column.most) if column.most else size)
        for size, column in zip(wide, columns, strict=True)
    ]
    shown = [
        number
        for number, column in enumerate(columns)
        if keeps_empty or not column.rank or any(row[number] not in _NOTHING for row in cells)
    ]
    while len(shown) > 1 and _total(wide, shown[:-1]) + _least(columns, wide, shown[-1]) > width:
        droppable = [number for number in shown if columns[number].rank]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda number: (columns[number].rank, number)))
    _shrink(columns, wide, shown, width)
    lines = [_line(columns, [column.title for column in columns], wide, shown, width)]
    lines += [_line(columns, row, wide, shown, width) for row in cells]
    lines[0] = style.paint("head", lines[0])
    return lines


def _shrink(columns: Sequence[TableColumn], wide: list[int], shown: list[int], width: int) -> None:
    """Shorten texts until all columns fit, then drop columns. Numbers are never cut."""
    full = list(wide)
    while len(shown) > 1:
        last = shown[-1]
        least = wide[last] if columns[last].is_right else min(wide[last], _FEWEST)
        if _total(wide, shown[:-1]) + least <= width:
            return
        texts = [n for n in shown[:-1] if not columns[n].is_right and wide[n] > _FEWEST]
        if not texts:
            shown.pop()
            wide[:] = full
            continue
        wide[max(texts, key=lambda n: wide[n])] -= 1


def _total(wide: Sequence[int], shown: Sequence[int]) -> int:
    return sum(wide[number] + _GAP for number in shown)


def _least(columns: Sequence[TableColumn], wide: Sequence[int], last: int) -> int:
    """Return the minimum width of the last column. Texts may be cut."""
    return wide[last] if columns[last].is_right else min(wide[last], 12)


def _line(
    columns: Sequence[TableColumn],
    row: Sequence[str],
    wide: Sequence[int],
    shown: Sequence[int],
    width: int,
) -> str:
    parts = [
        fill(row[number], wide[number], is_right=columns[number].is_right) for number in shown[:-1]
    ]
    last = shown[-1]
    parts.append(
        fill(row[last], wide[last], is_right=True) if columns[last].is_right else row[last]
    )
    return cut((" " * _GAP).join(parts), width).rstrip()
