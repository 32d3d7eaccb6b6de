"""The page of a node: state, jobs, meters, all metrics, cores and cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from markupsafe import Markup

from ccagent.views.web.amounts import format_age, format_number, format_quantity, format_share
from ccagent.views.web.data.buckets import make_grid, read_means
from ccagent.views.web.data.job_plots import NamedSeries, make_plot
from ccagent.views.web.data.job_search import JobFilter
from ccagent.views.web.links import jobs_link
from ccagent.views.web.pages.cluster_page import ShownTile
from ccagent.views.web.pages.job_row import JobRow, make_row
from ccagent.views.web.plots import PagePlot
from ccagent.views.web.svg.grids import draw_heat_map
from ccagent.views.web.svg.meters import draw_meter
from ccagent.views.web.times import ShownTime, read_times
from ccagent.views.web.words import STATES, shown_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.stores.metrics.groups import StoredSeries, StoreLevel
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.views.web.context import PageRequest, PageSources
    from ccagent.views.web.data.newest import NodeNow

_MOST_METRICS = 150
_MOST_ROWS = 256
_MOST_JOBS, _MOST_LISTED = 2000, 50


class NodeHeatMap(msgspec.Struct, frozen=True):
    """A heat map of cores or cards over time."""

    title: str
    drawing: Markup


class NodePage(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the page."""

    name: str
    state: tuple[str, str]
    age: str
    is_silent: bool
    tiles: list[ShownTile]
    jobs: list[JobRow]
    more: int
    all_link: str
    others: int
    facts: list[tuple[str, str]]
    times: ShownTime
    plots: list[PagePlot]
    left_out: int
    maps: list[NodeHeatMap]


async def make_node_page(sources: PageSources, request: PageRequest) -> NodePage | None:
    """Return the page; None if the node is unknown."""
    cluster, name = request.names["cluster"], request.names["node"]
    level = sources.find_node(cluster, name)
    if level is None:
        return None
    now = sources.now
    times = read_times(request.query, now, "6h", oldest=sources.oldest)
    node = sources.newest.of_node(level)
    running = await sources.jobs.find(JobFilter(cluster, state="running", node=name), _MOST_JOBS)
    mine = [job for job in running if request.viewer.may_see(job.user)]
    listed = mine[:_MOST_LISTED]
    summaries = await sources.reports.of_many(listed)
    is_silent = node.is_silent(now)
    metrics = _find_metrics(level)
    chosen = request.chosen_plots
    shown = [one for one in sorted(metrics)[:_MOST_METRICS] if not chosen or one in chosen]
    state = "silent" if is_silent else "busy" if running else "idle"
    return NodePage(
        name=shown_text(name),
        state=STATES[state],
        age=format_age(now - node.last) if node.last else "",
        is_silent=is_silent,
        tiles=_tiles(node, running, is_silent=is_silent),
        jobs=[make_row(*one) for one in zip(listed, summaries, strict=True)],
        more=len(mine) - len(listed),
        all_link=jobs_link(cluster, q=name, state="running"),
        others=len(running) - len(mine),
        facts=_facts(node),
        times=times,
        plots=[_plot(sources, metric, metrics[metric], times, request.points) for metric in shown],
        left_out=max(0, len(metrics) - _MOST_METRICS),
        maps=[] if chosen else _maps(level, times),
    )


def _tiles(node: NodeNow, running: Sequence[StoredJob], *, is_silent: bool) -> list[ShownTile]:
    if is_silent:
        return []
    cores = sum(
        job.details.cpus.get(node.name) or (job.details.cores or 0) // max(1, len(job.nodes))
        for job in running
    )
    allocated = f"{cores} of {node.cores} cores allocated" if node.cores else "cores unknown"
    used, total = node.memory_used, node.memory_total
    share = used / total if used is not None and total else None
    found = [
        ShownTile("CPU", format_share(node.cpu, 1), allocated, draw_meter(node.cpu)),
        ShownTile(
            "Memory", format_share(used, total),
            f"{format_quantity(used, 'B')} of {format_quantity(total, 'B')}", draw_meter(share),
        ),
    ]  # fmt: skip
    for number, card in enumerate(node.cards[:8]):
        text = f"{format_quantity(card.memory, 'B')} in use, {format_quantity(card.power, 'W')}"
        value = format_share(card.utilization, 1)
        found.append(ShownTile(f"GPU {number}", value, text, draw_meter(card.utilization)))
    if not node.cards:
        found.append(ShownTile("GPU", "none", "no card has sent values", None))
    found.append(
        ShownTile("Power", format_quantity(node.power, "W"), "processors, memory and cards", None)
    )
    found.append(ShownTile("Load", format_number(node.load), "mean of a minute", None))
    return found


def _facts(node: NodeNow) -> list[tuple[str, str]]:
    return [
        ("hardware threads", str(node.cores) if node.cores else "unknown"),
        ("memory", format_quantity(node.memory_total, "B")),
        ("GPUs", ", ".join(shown_text(card.name) for card in node.cards) or "none"),
        ("values every", f"{node.step} s"),
    ]


def _find_metrics(level: StoreLevel) -> dict[str, list[NamedSeries]]:
    """Return the series of the node by metric, else of its parts without jobs."""
    found: dict[str, list[NamedSeries]] = {
        metric: [("", series)] for metric, series in level.series.items()
    }
    for name, below in level.children.items():
        if name.startswith("job"):
            continue
        for metric, series in below.series.items():
            if metric not in level.series:
                found.setdefault(metric, []).append((_part_name(name), series))
    return found


def _part_name(name: str) -> str:
    """Return the displayed name of a node's part."""
    return shown_text(name.replace("accelerator", "GPU ", 1))


def _plot(
    sources: PageSources, metric: str, series: list[NamedSeries], times: ShownTime, points: int
) -> PagePlot:
    known = sources.metric(metric)
    step = min(one.group.frequency for _, one in series)
    grid = make_grid(times.start, times.end, step, min(points, 120) if points <= 240 else points)
    named = [(name or shown_text(metric), one) for name, one in sorted(series, key=_order)]
    return make_plot(
        metric, metric, known.unit, grid, named, factor=known.factor, what="parts",
        top=100.0 if known.unit == "%" else None,
    )  # fmt: skip


def _order(one: NamedSeries) -> tuple[int, str]:
    return len(one[0]), one[0]


def _maps(level: StoreLevel, times: ShownTime) -> list[NodeHeatMap]:
    """Return heat maps of the cores and of the cards."""
    found: list[NodeHeatMap] = []
    for kind, title, metric in (
        ("hwthread", "Use of each hardware thread by programs", "cpu_user"),
        ("accelerator", "Use of each GPU", "acc_utilization"),
    ):
        parts = [
            (name.removeprefix(kind), below.series[metric])
            for name, below in level.children.items()
            if name.startswith(kind) and metric in below.series
        ]
        parts.sort(key=lambda one: (len(one[0]), one[0]))
        if parts:
            found.append(NodeHeatMap(title, _map(title, parts[:_MOST_ROWS], times)))
    return found


def _map(title: str, parts: list[tuple[str, StoredSeries]], times: ShownTime) -> Markup:
    series = [one for _, one in parts]
    step = min(one.group.frequency for one in series)
    grid = make_grid(times.start, times.end, step, 96)
    means = read_means(series, grid) / 100
    height = 12 if len(parts) <= 16 else 6
    names = [
        shown_text(name) if height > 6 or not number % 8 else ""
        for number, (name, _) in enumerate(parts)
    ]
    text = (
        f"{title}: mean {format_share(float(np.nanmean(means)), 1)}"
        if means.size and not np.isnan(means).all()
        else title
    )
    return draw_heat_map(means, names, (grid.start, grid.end), height=height, label=text)
