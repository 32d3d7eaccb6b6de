"""Plots of series: of a job on its nodes, of a node, of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.views.web.data.buckets import SeriesBuckets, find_frequency, read_buckets
from ccagent.views.web.plots import PagePlot, join_lines
from ccagent.views.web.svg.lines import PlotLimit, PlotLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.stores.metrics.groups import StoredSeries
    from ccagent.views.web.data.buckets import TimeGrid

NamedSeries = tuple[str, "StoredSeries"]


def make_plot(
    key: str,
    title: str,
    unit: str,
    grid: TimeGrid,
    series: Sequence[NamedSeries],
    *,
    factor: float = 1.0,
    what: str = "nodes",
    top: float | None = None,
    limits: Sequence[PlotLimit] = (),
    reason: str = "",
) -> PagePlot:
    """Return a plot of named series; of many series, their minimum, mean and maximum."""
    lines: list[PlotLine] = []
    # Series with different steps are read separately.
    by_step: dict[int, list[NamedSeries]] = {}
    for one in series:
        by_step.setdefault(find_frequency([one[1]], grid), []).append(one)
    for named in by_step.values():
        for (name, _), values in zip(
            named, read_buckets([one for _, one in named], grid), strict=True
        ):
            lines.append(PlotLine(name, scaled(values, factor), len(lines)))
    joined = join_lines(lines, what)
    note = f"over {len(lines)} {what}" if len(joined) < len(lines) else ""
    return PagePlot(
        key=key, title=title, unit=unit, grid=grid, lines=tuple(joined), limits=tuple(limits),
        top=top, note=note,
        reason=reason or ("" if series else "not collected here"),
    )  # fmt: skip


def scaled(values: SeriesBuckets, factor: float) -> SeriesBuckets:
    """Return buckets multiplied by a factor."""
    if factor == 1.0:
        return values
    mean = values.mean * factor
    if values.low is values.mean:
        return SeriesBuckets(mean, mean, mean)
    return SeriesBuckets(values.low * factor, mean, values.high * factor)
