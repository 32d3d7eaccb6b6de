"""Meters as SVG: a share as a bar. The page shows the figure as text beside it."""

from __future__ import annotations

import math

from markupsafe import Markup


def draw_meter(share: float | None, *, state: str = "ok", mark: float | None = None) -> Markup:
    """Return a bar for a share from 0 to 1; hatched if the share is None.

    state: `ok`, `hint` or `bad`, selects the colour. mark: a second level, such as the request or
    a peak.
    """
    if share is None or not math.isfinite(share):
        bar = '<rect class="unknown" width="100" height="10"/>'
    else:
        width = min(100.0, max(0.0, 100 * share))
        bar = f'<rect class="fill {state}" width="{width:.1f}" height="10"/>'
    if mark is not None and math.isfinite(mark):
        place = min(99.4, max(0.0, 100 * mark))
        bar += f'<rect class="mark" x="{place:.1f}" width=".6" height="10"/>'
    return Markup(  # noqa: S704 - nothing but numbers and known words
        '<svg class="meter" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="10"/>{bar}</svg>'
    )
