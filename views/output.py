"""Standard output: width, style and printing."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from ccagent.errors import RejectedError
from ccagent.views.terminal import Style, choose_style, is_unicode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

_NARROWEST, _WIDEST = 20, 10_000


def find_width(otherwise: int = 80) -> int:
    """Return the terminal's columns; `otherwise` without a terminal and without COLUMNS."""
    columns = shutil.get_terminal_size((otherwise, 24)).columns
    return max(_NARROWEST, min(_WIDEST, columns))


def find_style(*, is_plain: bool = False) -> Style:
    """Return the style for standard output."""
    return choose_style(os.environ, is_terminal=is_terminal(sys.stdout), is_plain=is_plain)


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
