"""Rows of fields out of what a Slurm tool prints, whatever users have put into it.

The delimiter is made anew for each run, so that nobody can write it into a job's name. A row ends
with the last line break before the first delimiter of the next: so only the first field must be
without line breaks, and the last may hold any.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LARGEST_FIELD = 1024 * 1024
_PIECE = 24 * 1024
"""Bytes that are split at once. In more than 30,000 Python prepares again for each delimiter."""


def new_delimiter() -> str:
    """Make a delimiter that nobody can guess."""
    return f"\x1f{os.urandom(12).hex()}\x1f"


def split_rows(parts: Iterable[bytes], delimiter: bytes, columns: int) -> Iterator[list[bytes]]:
    """Yield the rows of `columns` fields, as the output comes.

    Memory is bounded by the largest row. A last row that is cut short is given as it is, shorter.
    """
    fields: list[bytes] = []
    rest = b""
    last = columns - 1
    for part in _cut(parts):
        pieces = (rest + part).split(delimiter)
        rest = pieces.pop()
        if len(rest) > _LARGEST_FIELD:
            rest = rest[-_LARGEST_FIELD:]
        fields += pieces
        begin = 0
        while len(fields) - begin > last:
            row = fields[begin : begin + columns]
            row[last], _, following = row[last].rpartition(b"\n")
            fields[begin + last] = following
            begin += last
            yield row
        del fields[:begin]
    if fields or rest.strip(b"\n"):
        yield [*fields, rest.removesuffix(b"\n")]


def _cut(parts: Iterable[bytes]) -> Iterator[bytes]:
    for part in parts:
        if len(part) <= _PIECE:
            yield part
        else:
            yield from (part[begin : begin + _PIECE] for begin in range(0, len(part), _PIECE))
