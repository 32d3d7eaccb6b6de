"""Encoding of control, log and event messages as lines, with times in nanoseconds."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ccagent.errors import EncodingError
from ccagent.records.line_protocol.encoding import encode_string, encode_tags, shorten

if TYPE_CHECKING:
    from ccagent.records.line_protocol.decoding import Line

_REMEMBERED = 1024


def encode_line(line: Line) -> str:
    """Return a line with a text. Raise EncodingError for an invalid name, tag or text.

    Names of controls may contain dots, unlike names of metrics.
    """
    start = _start(line.measurement, tuple(line.tags.items()))
    if not isinstance(line.value, str) or not line.value.isprintable():
        raise EncodingError(f"{line.measurement}: {line.field} can't be {shorten(line.value)}")
    return f"{start} {line.field}={encode_string(line.value)} {line.time}"


@lru_cache(_REMEMBERED)
def _start(name: str, tags: tuple[tuple[str, str], ...]) -> str:
    """Return the text of name and tags, cached because requests repeat them."""
    if not name or not name.isprintable() or name.endswith("\\") or name.startswith("#"):
        raise EncodingError(f"name {shorten(name)}: empty, a comment, or with control characters")
    return name.replace(",", "\\,").replace(" ", "\\ ") + encode_tags(dict(tags))
