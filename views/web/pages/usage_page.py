"""The page of usage: energy, CO2 and cost of ended jobs by user or project, and over time."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import msgspec
import numpy as np

from ccagent.errors import CcagentError
from ccagent.stores.metrics.usage.table import KEYS, UsageAnswer, UsageQuery, UsageSum
from ccagent.views.job.formats import (
    format_cost,
    format_csv,
    format_energy,
    format_grams,
    note_usage,
)
from ccagent.views.web.addresses import ShownTime, jobs_link, read_times
from ccagent.views.web.data.buckets import SeriesBuckets, TimeGrid
from ccagent.views.web.drawing import PlotLine, draw_meter
from ccagent.views.web.plots import MOST_LINES, PagePlot
from ccagent.views.web.rendering import server_zone, shown_text

if TYPE_CHECKING:
    from markupsafe import Markup

    from ccagent.views.web.context import PageRequest, PageSources

_DAY = 86400
_DEFAULT = "30d"
_MOST_ROWS = 200
RANGES = ("24h", "7d", "30d", "90d", "365d")


class UsageRow(NamedTuple):
    """A row. share: of all energy, as a bar. link: to the jobs, "" without one."""

    name: str
    link: str
    share: Markup
    jobs: str
    measured: str
    energy: str
    grams: str
    cost: str


class UsagePage(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the page. answer: all sums; rows: those with most energy."""

    answer: UsageAnswer
    times: ShownTime
    by: str
    links: list[tuple[str, str]]
    rows: list[UsageRow]
    total: UsageRow
    left_out: int
    plots: list[PagePlot]
    ranges: tuple[str, ...] = RANGES

    @property
    def tables(self) -> dict[str, Any]:
        """Return the tables for JSON."""
        found: dict[str, Any] = msgspec.to_builtins(self.answer)
        return {"usage": found}

    def notes(self, zone: tzinfo) -> list[str]:
        """Return sentences on what is unknown, with times in a zone."""
        return [shown_text(one, 400) for one in note_usage(self.answer, zone)]

    def as_csv(self) -> str:
        """Return CSV with one line per key."""
        return format_csv(self.answer)


class UsageError(CcagentError):
    """The table of usage can't be read. The message is for the viewer."""


async def make_usage_page(sources: PageSources, request: PageRequest) -> UsagePage | None:
    """Return the page; None without a table of usage. Raise UsageError."""
    usage, query = sources.usage, request.query
    if usage is None:
        return None
    by = query.get("by", "")
    by = by if by in KEYS else "project"
    times = read_times(query, sources.now, _DEFAULT)
    wanted = UsageQuery(times.start, times.end, by, user=request.only_user)
    try:
        answer = await asyncio.to_thread(usage.answer, wanted)
        days = await asyncio.to_thread(usage.answer, wanted._replace(each="day"))
    except sqlite3.Error as error:
        raise UsageError(f"the table of usage can't be read: {error}") from error
    chosen = [(one, f"/usage?{urlencode({**dict(times.parameters), 'by': one})}") for one in KEYS]
    total = answer.total.joules
    clusters = list(sources.store.root.children)
    cluster = clusters[0] if len(clusters) == 1 else ""
    return UsagePage(
        answer=answer,
        times=times,
        by=by,
        links=chosen,
        rows=[
            _row(one, answer, total, _link(one.key, by, cluster, times))
            for one in answer.rows[:_MOST_ROWS]
        ],
        total=_row(answer.total, answer, total, ""),
        left_out=max(0, len(answer.rows) - _MOST_ROWS),
        plots=[_plot_days(answer, days, times)],
    )


def _link(key: str, by: str, cluster: str, times: ShownTime) -> str:
    """Return the address of the jobs of a row; "" if several clusters may have them."""
    cluster = key if by == "cluster" else cluster
    if not (key and cluster):
        return ""
    filters = {"project": {"account": key}, "user": {"user": key}}.get(by, {})
    return jobs_link(cluster, **filters, **dict(times.parameters))


def _row(found: UsageSum, answer: UsageAnswer, total: float, link: str) -> UsageRow:
    return UsageRow(
        name=shown_text(found.key) or "unknown",
        link=link,
        share=draw_meter(found.joules / total if total > 0 else None),
        jobs=f"{found.jobs:,}",
        measured=f"{found.measured:,}",
        energy=format_energy(found),
        grams=format_grams(found),
        cost=format_cost(found, answer.currency),
    )


def _plot_days(answer: UsageAnswer, days: UsageAnswer, times: ShownTime) -> PagePlot:
    """Return the energy of each day, of the keys with most energy and of the rest."""
    start = _midnight(times.start)

    def count_days(midnight: int) -> int:
        return (midnight - start + _DAY // 2) // _DAY  # days have 23 to 25 hours

    size = count_days(_midnight(times.end - 1)) + 1
    shown = [one.key for one in answer.rows[: MOST_LINES - 4] if one.joules > 0]
    rows = {key: np.zeros(size) for key in shown}
    rest = np.zeros(size)
    for one in days.rows:
        place = count_days(_day_start(one.period))
        if 0 <= place < size:
            rows.get(one.key, rest)[place] += one.joules / 3600
    if rest.any():
        rows["others"] = rest
    return PagePlot(
        key="energy",
        title="energy of the jobs that ended on a day",
        unit="Wh",
        is_daily=True,
        note=f"days of the time zone of the store, {server_zone()}",
        grid=TimeGrid(start, _DAY, size),
        lines=tuple(
            PlotLine(name or "unknown", SeriesBuckets(values, values, values), number)
            for number, (name, values) in enumerate(rows.items())
        ),
        reason="no job with a known energy ended in this time",
    )


def _midnight(moment: int) -> int:
    """Return the start of a day: its offset from UTC may differ from that of the moment."""
    return _day_start(f"{datetime.fromtimestamp(moment).astimezone():%Y-%m-%d}")


def _day_start(text: str) -> int:
    return int(datetime.strptime(text, "%Y-%m-%d").astimezone().timestamp())
