"""The data of a plot, with its formats: SVG, JSON for zooming, CSV, and a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from markupsafe import Markup

from ccagent.views.amounts import format_quantity
from ccagent.views.terminal import write_csv
from ccagent.views.web.data.buckets import (
    SeriesBuckets,
    TimeGrid,
    find_frequency,
    mean_of,
    read_buckets,
)
from ccagent.views.web.data.nodes import SILENT_AFTER
from ccagent.views.web.drawing import ELAPSED, PlotLimit, PlotLine, draw_lines, series_class
from ccagent.views.web.rendering import shown_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries


MOST_LINES = 12
"""Maximum of lines. Plots with more lines show minimum, mean and maximum over the lines."""


class LegendEntry(msgspec.Struct, frozen=True):
    """A row of the table below a plot."""

    name: str
    style: str
    low: str
    mean: str
    high: str
    last: str


class PagePlot(msgspec.Struct, frozen=True, kw_only=True):
    """A plot of a page. key: in addresses. reason: of an empty plot. top: fixed end of its axis.

    is_daily: values are of days of this machine's time zone.
    is_elapsed: its times are seconds since a start, which is 0.
    """

    key: str
    title: str
    unit: str
    grid: TimeGrid
    lines: tuple[PlotLine, ...] = ()
    limits: tuple[PlotLimit, ...] = ()
    top: float | None = None
    reason: str = ""
    note: str = ""
    is_daily: bool = False
    description: str = ""
    is_elapsed: bool = False

    @property
    def is_empty(self) -> bool:
        """Return whether the plot has no values."""
        return not any(bool((~np.isnan(line.values.mean)).any()) for line in self.lines)

    @property
    def is_zero(self) -> bool:
        """Return whether all values are 0."""
        ends = (one for line in self.lines for one in (line.values.low, line.values.high))
        return not any(np.nan_to_num(one).any() for one in ends)

    @property
    def sentence(self) -> str:
        """Return a sentence with mean, minimum and maximum, or with the reason of an empty plot."""
        if self.is_empty:
            return self.reason or "no values in this time"
        means = np.concatenate([line.values.mean for line in self.lines])
        lows = np.concatenate([line.values.low for line in self.lines])
        highs = np.concatenate([line.values.high for line in self.lines])
        text = (
            f"mean {self._say(float(np.nanmean(means)))}, from {self._say(float(np.nanmin(lows)))}"
            f" to {self._say(float(np.nanmax(highs)))}"
        )
        return text + (f"; {self.note}" if self.note else "")

    def draw(self, zone: tzinfo) -> Markup:
        """Return the plot as SVG; empty for a plot without values."""
        if self.is_empty:
            return Markup()
        return draw_lines(
            self.lines, self.grid, self.unit,
            ELAPSED if self.is_elapsed else None if self.is_daily else zone,
            limits=self.limits, top=self.top, label=f"{self.title}: {self.sentence}",
        )  # fmt: skip

    @property
    def legend(self) -> list[LegendEntry]:
        """Return minimum, mean, maximum and newest value of each line."""
        found: list[LegendEntry] = []
        for line in self.lines:
            low, mean, high = line.values
            present = mean[~np.isnan(mean)]
            if not present.size:
                found.append(LegendEntry(line.name, series_class(line.number), *["no values"] * 4))
                continue
            numbers = (np.nanmin(low), present.mean(), np.nanmax(high), present[-1])
            texts = [self._say(float(one)) for one in numbers]
            found.append(LegendEntry(line.name, series_class(line.number), *texts))
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the plot as an object for JSON. Missing values are null."""
        return {
            "key": self.key,
            "title": shown_text(self.title),
            "unit": self.unit,
            "start": self.grid.start,
            "step": self.grid.step,
            "top": self.top,
            "elapsed": self.is_elapsed,
            "limits": [{"name": shown_text(one.name), "value": one.value} for one in self.limits],
            "series": [
                {
                    "name": shown_text(line.name),
                    "number": line.number,
                    "band": True,
                    "min": _numbers(line.values.low),
                    "mean": _numbers(line.values.mean),
                    "max": _numbers(line.values.high),
                }
                for line in self.lines
            ],
        }

    def as_csv(self) -> str:
        """Return CSV with one line per series and time, in base units."""
        unit = self.unit or "1"
        names = ["time", "series", f"min [{unit}]", f"mean [{unit}]", f"max [{unit}]"]
        return write_csv(names, (
            (self.grid.start + number * self.grid.step, line.name, *row)
            for line in self.lines
            for number, row in enumerate(zip(*map(_numbers, line.values), strict=True))
            if row[1] is not None
        ))  # fmt: skip

    def _say(self, value: float) -> str:
        return format_quantity(value, self.unit)


def join_lines(lines: list[PlotLine], what: str) -> list[PlotLine]:
    """Return the lines; if there are too many, minimum, mean and maximum over them."""
    if len(lines) <= MOST_LINES:
        return lines
    low = np.fmin.reduce([line.values.low for line in lines])
    high = np.fmax.reduce([line.values.high for line in lines])
    mean = mean_of(np.array([line.values.mean for line in lines]), 0)
    name = f"mean of {len(lines)} {what}, with the lowest and the highest"
    return [PlotLine(name, SeriesBuckets(low, mean, high), 0)]


def fewest_present(lines: Sequence[PlotLine], frequencies: Sequence[int], step: int) -> int:
    """Return the number of lines with values at the worst time; all lines if none has values.

    A line is present from its first to its last value, and for SILENT_AFTER of its intervals before
    and after: nodes sample and send at different seconds. frequencies: time steps of the lines in
    s. step: of the grid.
    """
    size = lines[0].values.mean.size if lines else 0
    counts, has_values = np.zeros(size, np.intp), np.zeros(size, np.bool_)
    for line, frequency in zip(lines, frequencies, strict=True):
        found = np.flatnonzero(~np.isnan(line.values.mean))
        if found.size:
            first, last = int(found[0]), int(found[-1]) + 1
            margin = -(-SILENT_AFTER * frequency // step)
            counts[max(0, first - margin) : last + margin] += 1
            has_values[first:last] = True
    return int(counts[has_values].min(initial=len(lines)))


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    """Return values with five significant digits, and None for missing values."""
    return [None if value != value else float(f"{value:.5g}") for value in values.tolist()]  # noqa: PLR0124


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
    description: str = "",
) -> PagePlot:
    """Return a plot of named series; of many series, their minimum, mean and maximum."""
    lines: list[PlotLine] = []
    frequencies: list[int] = []
    # Series with different steps are read separately.
    by_step: dict[int, list[NamedSeries]] = {}
    for one in series:
        by_step.setdefault(find_frequency([one[1]], grid), []).append(one)
    for named in by_step.values():
        for (name, _), values in zip(
            named, read_buckets([one for _, one in named], grid), strict=True
        ):
            lines.append(PlotLine(name, scaled(values, factor), len(lines)))
        frequencies += [one.group.frequency for _, one in named]
    joined = join_lines(lines, what)
    notes = [f"over {len(lines)} {what}"] if len(joined) < len(lines) else []
    fewest = fewest_present(lines, frequencies, grid.step)
    if fewest < len(lines):
        notes.append(f"coverage {fewest} of {len(lines)} {what}")
    return PagePlot(
        key=key, title=title, unit=unit, grid=grid, lines=tuple(joined), limits=tuple(limits),
        top=top, note="; ".join(notes), description=description,
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
