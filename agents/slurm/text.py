"""Decoder for text chosen by users."""

from __future__ import annotations


def readable(content: bytes) -> str:
    r"""Decode UTF-8; invalid bytes become `\xff`."""
    return content.decode("utf-8", "backslashreplace")
