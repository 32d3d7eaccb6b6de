"""The encoding of arbitrary names of clusters, nodes and jobs as segments of a URL path.

Browsers resolve `..` and `%2e%2e`, and servers decode `%2F`. Therefore all characters except
letters, digits, `.`, `-` and `_` are encoded as `~` and two hexadecimal digits per byte.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_ESCAPE = re.compile(rb"~([0-9A-F]{2})")
_FORM = re.compile(r"(?:[A-Za-z0-9._-]|~[0-9A-F]{2})+")
_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_LONGEST = 3 * 1024


def encode_segment(name: str) -> str:
    """Return a name as a segment of a path."""
    if _PLAIN.fullmatch(name):
        return name
    return "".join(
        chr(byte) if byte in _KEPT else f"~{byte:02X}"
        for byte in name.encode("utf-8", "surrogateescape")
    )


def decode_segment(text: str) -> str:
    """Return the name of a segment. Raise ValueError if the encoding is invalid."""
    if len(text) > _LONGEST or not _FORM.fullmatch(text):
        raise ValueError("not the address of a page")
    found = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), text.encode("ascii"))
    return found.decode("utf-8", "surrogateescape")
