"""Untrusted texts for pages: names of jobs, users, nodes and metrics."""

from __future__ import annotations

import unicodedata

_SHOWN = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 256


def shown_text(text: object) -> str:
    """Return a text with control characters and direction marks replaced.

    Such characters could move or hide other text. The templates escape markup.
    """
    found = str(text)[:_LONGEST]
    if found.isascii() and found.isprintable():
        return found
    return "".join(
        _SHOWN if unicodedata.category(one) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"} else one
        for one in found
    )


STATES = {
    "ok": ("●", "ok"), "hint": ("▲", "hint"), "BAD": ("■", "BAD"), "unknown": ("◌", "unknown"),
    "short": ("◌", "too short"), "busy": ("●", "busy"), "idle": ("○", "idle"),
    "silent": ("✕", "silent"),
}  # fmt: skip
"""Shape and word by level. They make colours redundant."""
