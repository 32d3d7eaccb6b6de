"""Rows in the output of Slurm's tools, safe against any text of users, and recurring values.

Each run has a new random delimiter, so users can't write it into a job's name. A row ends with the
last line break before the first delimiter of the next row. So only the first field must be without
line breaks; the last field may contain any text.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_LARGEST_FIELD = 1024 * 1024
_PIECE = 24 * 1024
"""Bytes to split at once. Above 30,000 bytes, Python prepares the search again for each
delimiter.
"""


def new_delimiter() -> str:
    """Return a random delimiter that users can't guess."""
    return f"\x1f{os.urandom(12).hex()}\x1f"


def split_rows(parts: Iterable[bytes], delimiter: bytes, columns: int) -> Iterator[list[bytes]]:
    """Yield the rows of `columns` fields while the output arrives.

    Memory is bounded by the largest row. An incomplete last row is returned with fewer fields.
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
