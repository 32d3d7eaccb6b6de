"""Line ends of dumps that went through a system with others."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HEAD = 4096


def normalize_line_ends(chunks: Iterable[bytes]) -> Iterator[bytes]:
    r"""Yield a text whose lines end with `\n`, if most of its first ones end with `\r\n`.

    Of other texts nothing is changed: an id may end with `\r`.
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
        # The \n of a \r at the end comes with the next chunk.
        rest = b"\r" if text.endswith(b"\r") else b""
        yield text.removesuffix(b"\r").replace(b"\r\n", b"\n")
    yield rest
