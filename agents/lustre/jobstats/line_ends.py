"""Normalization of CR LF line ends in dumps."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HEAD = 4096


def normalize_line_ends(chunks: Iterable[bytes]) -> Iterator[bytes]:
    r"""Yield the text with line ends `\n` if most of its first lines end with `\r\n`.

    Other texts stay unchanged: an id may end with `\r`.
    """
    rest_of_chunks = iter(chunks)
    head = b""
    for chunk in rest_of_chunks:
        head += chunk
        if len(head) >= _HEAD:
            break
    lines = head[:_HEAD]
    if 2 * lines.count(b"\r\n") <= lines.count(b"\n"):
        yield head
        yield from rest_of_chunks
        return
    rest = b""
    for chunk in chain((head,), rest_of_chunks):
        text = rest + chunk
        # The line feed after a final carriage return is in the next chunk.
        rest = b"\r" if text.endswith(b"\r") else b""
        yield text.removesuffix(b"\r").replace(b"\r\n", b"\n")
    yield rest
