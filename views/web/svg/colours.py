"""Colours of series and of shares, distinguishable for colour-blind people.

Source: Okabe and Ito for series; viridis for shares. Pages use CSS classes, which dark mode can
change: `s0` to `s7` for series, `h0` to `h9` for shares, `hx` for missing values.
"""

from __future__ import annotations

import math

SERIES = 8
"""Number of colours of series. The ninth series has the first colour, with dashes."""

SHARES = 10


def series_class(number: int) -> str:
    """Return the CSS classes of a series, for colour and dashes."""
    dashes = number // SERIES % 3
    return f"s{number % SERIES}" + (f" d{dashes}" if dashes else "")


def share_class(share: float | None) -> str:
    """Return the CSS class of a share from 0 to 1; `hx` if it is missing."""
    if share is None or not math.isfinite(share):
        return "hx"
    return f"h{min(SHARES - 1, max(0, int(share * SHARES)))}"
