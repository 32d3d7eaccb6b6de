"""Untrusted texts for pages: names of jobs, users, nodes and metrics."""

from __future__ import annotations

import unicodedata

from markupsafe import Markup, escape

_SHOWN = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 256
_LONGEST_LABEL = 2000


def shown_text(text: object, longest: int = _LONGEST) -> str:
    """Return a text with control characters and direction marks replaced, at most `longest` long.

    Such characters could move or hide other text. The templates escape markup.
    """
    found = str(text)[:longest]
    if found.isascii() and found.isprintable():
        return found
    return "".join(
        _SHOWN if unicodedata.category(one) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"} else one
        for one in found
    )


def escape_label(text: object) -> Markup:
    """Return a text for an attribute or a title of a drawing: shown, and escaped."""
    return escape(shown_text(text, _LONGEST_LABEL))


STATES = {
    "ok": ("●", "ok"), "hint": ("▲", "hint"), "BAD": ("■", "BAD"), "unknown": ("◌", "unknown"),
    "short": ("◌", "too short"), "busy": ("●", "busy"), "idle": ("○", "idle"),
    "silent": ("✕", "silent"),
}  # fmt: skip
"""Shape and word by level. They make colours redundant."""
