"""Rows in the output of Slurm's tools, safe against any text of users, and recurring values.

Each run has a new random delimiter, so users can't write it into a job's name. It ends each field,
and a line break follows the last one. The first two fields of a row begin with a job id. So a
damaged row, with a delimiter too few or too many, ends where the next job id begins.
"""

from __future__ import annotations

import os
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


ASKED_AT_ONCE = 500
"""Maximum jobs of one query; their ids are arguments of sacct."""

_LARGEST_FIELD = 1024 * 1024
_PIECE = 24 * 1024
"""Bytes to split at once. Above 30,000 bytes, Python prepares the search again for each
delimiter.
"""


_MOST_DAMAGED = 4
"""Rows without a job id after which their fields are dropped."""


def new_delimiter() -> str:
    """Return a random delimiter that users can't guess."""
    return f"\x1f{os.urandom(12).hex()}\x1f"


def split_rows(parts: Iterable[bytes], delimiter: bytes, columns: int) -> Iterator[list[bytes]]:
    """Yield the rows of `columns` fields while the output arrives.

    Anything else, such as a damaged row or a line of a wrapper script, is yielded as a row of one
    field. Memory is bounded by the largest row.
    """
    fields: list[bytes] = []
    rest = b"\n"
    for part in chain(_cut(parts), (delimiter,)):  # the last one ends the last line break
        pieces = (rest + part).split(delimiter)
        rest = pieces.pop()
        if len(rest) > _LARGEST_FIELD:
            rest = rest[-_LARGEST_FIELD:]
        fields += pieces
        begin = 0
        while len(fields) - begin > columns:
            end = begin + columns
            first, second = fields[begin], fields[begin + 1]
            # True for all rows but damaged ones.
            if (
                first.rfind(b"\n") == 0
                and first[1:2].isdigit()
                and second[:1].isdigit()
                and b"\n" not in second
                and fields[end][:1] == b"\n"
            ):
                row = fields[begin:end]
                row[0] = first[1:]
                yield row
                begin = end
            else:
                found = _find_row(fields, begin)
                if found is None and len(fields) - begin < _MOST_DAMAGED * columns:
                    break
                damaged, begin = found or (fields[begin:-1], len(fields) - 1)
                yield from _join(damaged)
        del fields[:begin]
    yield from _join(fields)


def _find_row(fields: list[bytes], begin: int) -> tuple[list[bytes], int] | None:
    """Return the damaged fields from `begin` on, and the index of the row after them, if any.

    A line break and a job id are in front of the first field of a row, and an id of the second.
    """
    for index in range(begin, len(fields) - 1):
        before, line_break, name = fields[index].rpartition(b"\n")
        is_row = line_break and name[:1].isdigit() and fields[index + 1][:1].isdigit()
        if is_row and (index > begin or before):
            damaged = [*fields[begin:index], before]
            fields[index] = b"\n" + name
            return damaged, index
    return None


def _join(fields: list[bytes]) -> Iterator[list[bytes]]:
    """Yield a row of one field with all text, if there is any."""
    if text := b" ".join(fields).strip():
        yield [text]


def _cut(parts: Iterable[bytes]) -> Iterator[bytes]:
    for part in parts:
        if len(part) <= _PIECE:
            yield part
        else:
            yield from (part[begin : begin + _PIECE] for begin in range(0, len(part), _PIECE))


def readable(content: bytes) -> str:
    r"""Decode UTF-8; invalid bytes become `\xff`."""
    return content.decode("utf-8", "backslashreplace")


_LARGEST = 16_384

Text = TypeVar("Text")
Value = TypeVar("Value")


class Remembered(dict[Text, Value]):
    """Results of a function by text. At the maximum number of texts, all are dropped.

    Exceptions are not cached. This takes half the time of functools.lru_cache.
    """

    def __init__(self, function: Callable[[Text], Value]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, text: Text) -> Value:
        """Return and cache the result of the function. Raise as the function does."""
        value = self._function(text)
        if len(self) >= _LARGEST:
            self.clear()
        self[text] = value
        return value
