"""Texts that others have chosen, for pages: names of jobs, users, nodes and metrics."""

from __future__ import annotations

import unicodedata

_SHOWN = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 256


def shown_text(text: object) -> str:
    """Return a text without control characters and marks of direction, each replaced by one sign.

    Markup is escaped by the templates; what is left here could only move or hide other text.
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
"""A shape and a word for each state, so that no colour is needed."""
