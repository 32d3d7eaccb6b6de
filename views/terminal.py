"""Text for terminals: unsafe characters, width, colours.

Users choose the names of processes, jobs and users. Their characters must not control the
terminal, change the direction of the text after them, or shift a column.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class Style(NamedTuple):
    """The style of an output. is_plain: no colours and no bars, for pipes and screen readers."""

    has_colours: bool = False
    is_plain: bool = False

    def paint(self, part: str, text: str) -> str:
        """Return a text in the colour of a part, if the style has colours."""
        if not self.has_colours or not text:
            return text
        return f"\x1b[{_CODES[part]}m{text}\x1b[0m"


def choose_style(
    environment: Mapping[str, str], *, is_terminal: bool, is_plain: bool = False
) -> Style:
    """Return the style for an output. Source of NO_COLOR: no-color.org."""
    if is_plain:
        return Style(is_plain=True)
    is_dumb = environment.get("TERM", "dumb") in {"", "dumb"}
    return Style(has_colours=is_terminal and not is_dumb and not environment.get("NO_COLOR"))


def is_unicode(encoding: str | None) -> bool:
    """Return whether an encoding can express all of Unicode."""
    name = (encoding or "ascii").lower().replace("-", "").replace("_", "")
    return name in {"utf8", "utf16", "utf32"}
