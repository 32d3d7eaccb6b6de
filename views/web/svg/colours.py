"""Colours of series and of shares, which colour-blind people can tell apart.

Source: Okabe and Ito for series; viridis for shares. Pages name them as classes, so that dark mode
can change them: `s0` to `s7` of series, `h0` to `h9` of shares, `hx` for missing values.
"""

from __future__ import annotations

import math

SERIES = 8
"""Colours of series; a ninth one is the first with dashes."""

SHARES = 10


def series_class(number: int) -> str:
    """Return the class of a series: its colour, then its dashes."""
    dashes = number // SERIES % 3
    return f"s{number % SERIES}" + (f" d{dashes}" if dashes else "")


def share_class(share: float | None) -> str:
    """Return the class of a share from 0 to 1; `hx` if it is missing."""
    if share is None or not math.isfinite(share):
        return "hx"
    return f"h{min(SHARES - 1, max(0, int(share * SHARES)))}"
