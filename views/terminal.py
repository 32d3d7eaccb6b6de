"""Text for terminals and CSV: unsafe characters, width, colours, tables, printing.

Users choose the names of processes, jobs and users. Their characters must not control the
terminal, change the direction of the text after them, or shift a column.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from ccagent.errors import RejectedError

if TYPE_CHECKING:
    from typing import TextIO


R = TypeVar("R")

_SHOWN = "\N{REPLACEMENT CHARACTER}"
_WIDE = frozenset("WF")
_HIDDEN = frozenset({"Mn", "Me", "Mc", "Cf", "Cc", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of characters without a column, or of unknown width."""

_JOINED = (range(0x1160, 0x1200), range(0xD7B0, 0xD800))
"""Vowels and final consonants of Hangul: terminals draw them into the preceding letter."""

_LONGEST = 10_000

_CODES = {
    "bad": "1;31", "hint": "33", "good": "34", "dim": "2", "bar": "36", "head": "1",
}  # fmt: skip
"""SGR codes by part of a text, from the eight colours of every terminal."""


def clean(text: str, *, is_ascii: bool = False) -> str:
    """Return a text of left-to-right characters that have one or two columns each.

    Control characters, direction marks, combining characters and letters of right-to-left scripts
    are replaced, each by one character. is_ascii: also replace all other non-ASCII characters.
    """
    text = text[:_LONGEST]
    if text.isascii() and text.isprintable():
        return text
    sign = "?" if is_ascii else _SHOWN
    return "".join(
        char if char.isascii() and char.isprintable() else sign if is_ascii or _is_odd(char)
        else char
        for char in text
    )  # fmt: skip


def _is_odd(char: str) -> bool:
    if char == " ":
        return False
    return (
        not char.isprintable()
        or unicodedata.category(char) in _HIDDEN
        or any(ord(char) in each for each in _JOINED)
        or unicodedata.bidirectional(char) in {"R", "AL", "AN", "RLE", "RLO", "RLI", "LRE", "LRO"}
    )


def width_of(text: str) -> int:
    """Return the number of columns of a clean text."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in _WIDE else 1 for char in text)


def write_csv(names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return CSV. Spreadsheets do not interpret its texts as formulas."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(_harmless(one) if isinstance(one, str) else one for one in row)
    return text.getvalue()


def _harmless(text: str) -> str:
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text


def cut(text: str, width: int) -> str:
    """Return a clean text of at most `width` columns. A cut is marked with `+`."""
    if width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    found, used = "", 0
    for char in text:
        used += width_of(char)
        if used > width - 1:
            break
        found += char
    return f"{found}+"


def fill(text: str, width: int, *, is_right: bool = False) -> str:
    """Return a clean text cut or padded to exactly `width` columns."""
    text = cut(text, width)
    space = " " * (width - width_of(text))
    return space + text if is_right else text + space


def fold(text: str, width: int, indent: str = "", first: str | None = None) -> list[str]:
    """Return a text in lines of at most `width` columns. first: indent of the first line."""
    return textwrap.wrap(
        text, max(_NARROWEST, width), initial_indent=indent if first is None else first,
        subsequent_indent=indent, break_on_hyphens=False,
    )  # fmt: skip


class Style(NamedTuple):
    """The style of an output. is_plain: no colours and no bars, for pipes and screen readers."""

    has_colours: bool = False
    is_plain: bool = False

    def paint(self, part: str, text: str) -> str:
        """Return a text in the colour of a part, if the style has colours."""
        if not self.has_colours or not text:
            return text
        return f"\x1b[{_CODES[part]}m{text}\x1b[0m"


def is_unicode(encoding: str | None) -> bool:
    """Return whether an encoding can express all of Unicode."""
    name = (encoding or "ascii").lower().replace("-", "").replace("_", "")
    return name in {"utf8", "utf16", "utf32"}


_NARROWEST, _WIDEST = 20, 10_000


def find_width(otherwise: int = 80) -> int:
    """Return the terminal's columns; `otherwise` without a terminal and without COLUMNS."""
    columns = shutil.get_terminal_size((otherwise, 24)).columns
    return max(_NARROWEST, min(_WIDEST, columns))


def find_style(*, is_plain: bool = False) -> Style:
    """Return the style for standard output. Source of NO_COLOR: no-color.org."""
    is_dumb = os.environ.get("TERM", "dumb") in {"", "dumb"} or bool(os.environ.get("NO_COLOR"))
    has_colours = is_terminal(sys.stdout) and not is_dumb and not is_plain
    return Style(has_colours=has_colours, is_plain=is_plain)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines. Characters that the output's encoding lacks are replaced.

    Raise RejectedError if standard output is closed.
    """
    if sys.stdout is None:
        raise RejectedError("standard output: it is closed")
    text = "".join(f"{line}\n" for line in lines)
    if not is_unicode(sys.stdout.encoding):
        text = text.encode("ascii", "replace").decode()
    sys.stdout.write(text)


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal. stream: None if closed at the start."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed later
        return False


_GAP = 1
_NOTHING = frozenset({"", "-"})
_FEWEST = 4
"""Minimum width of a text column."""


class TableColumn(msgspec.Struct, Generic[R], frozen=True):
    """A column. show: returns the text of a row. is_right: right-aligned.

    rank: 0 is never dropped; on a narrow terminal the highest rank is dropped first. most: maximum
    width; 0: no maximum, and the last column gets the remaining width.
    """

    title: str
    show: Callable[[R], str]
    is_right: bool = False
    rank: int = 0
    most: int = 0
    least: int = 0


def format_rows(
    columns: Sequence[TableColumn[R]],
    rows: Iterable[R],
    width: int,
    style: Style,
    *,
    is_ascii: bool = False,
    keeps_empty: bool = False,
) -> list[str]:
    """Return a title line and a line per row, at most `width` columns wide.

    keeps_empty: keep columns without values, for a stable screen.
    """
    cells = [[clean(column.show(row), is_ascii=is_ascii) for column in columns] for row in rows]
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


def _shrink(
    columns: Sequence[TableColumn[Any]], wide: list[int], shown: list[int], width: int
) -> None:
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


def _least(columns: Sequence[TableColumn[Any]], wide: Sequence[int], last: int) -> int:
    """Return the minimum width of the last column. Texts may be cut."""
    return wide[last] if columns[last].is_right else min(wide[last], 12)


def _line(
    columns: Sequence[TableColumn[Any]],
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
