"""Text that users have chosen."""

from __future__ import annotations


def readable(content: bytes) -> str:
    r"""Decode UTF-8; bytes that aren't are kept as `\xff`."""
    return content.decode("utf-8", "backslashreplace")
