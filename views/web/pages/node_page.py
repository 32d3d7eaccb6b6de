"""The page of a node: state, jobs, meters, all metrics, cores and cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ccagent.views.amounts import format_age, format_number, format_quantity, format_share, plural
from ccagent.views.web.addresses import ShownTime, cut_times, read_times
from ccagent.views.web.data.buckets import make_grid, read_means
from ccagent.views.web.data.job_search import JobFilter
from ccagent.views.web.drawing import TimedDrawing, draw_heat_map, draw_meter
from ccagent.views.web.pages.cluster_page import ShownTile
from ccagent.views.web.pages.filters import describe_node
from ccagent.views.web.pages.jobs_page import JobRow, make_row
from ccagent.views.web.plots import NamedSeries, PagePlot, make_plot
from ccagent.views.web.rendering import STATES, shown_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ccagent.stores.metrics.groups import StoreLevel
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.views.web.context import PageRequest, PageSources
    from ccagent.views.web.data.nodes import NodeNow

_MOST_METRICS = 150
GROUPS: tuple[tuple[str, frozenset[str], tuple[str, ...]], ...] = (
    ("Processors", frozenset({"cpu", "cpufreq", "schedstat", "perf"}), ("cpu", "flops")),
    ("Memory", frozenset({"memory", "numastat"}), ("mem", "swap")),
    ("GPUs", frozenset({"accelerators"}), ("acc", "gpu", "nv_")),
    ("Network", frozenset({"network", "infiniband"}), ("net", "ib_", "eth")),
    (
        "File systems and disks",
        frozenset({"nfs", "nfs-mounts", "disk", "nvme", "filesystem", "beegfs", "gpfs"}),
        ("lustre", "nfs", "disk", "file", "io_"),
    ),
    (
        "Power and temperature",
        frozenset({"power", "temperature", "hwmon", "ipmi"}),
        ("node_power", "power", "temp", "energy"),
    ),
    ("Waiting and kernel", frozenset({"pressure", "kernel"}), ("pressure", "proc")),
    ("ccagent", frozenset({"ccagent"}), ("ccagent",)),
    ("Others", frozenset({"cgroup-jobs"}), ()),
)
"""Groups of metrics: title, readers, and beginnings of the names of metrics without a reader."""

_OPEN = 1
"""Number of groups that are not folded."""

_MOST_ROWS = 256
_MOST_JOBS, _MOST_LISTED = 2000, 50


class PlotGroup(NamedTuple):
    """Plots of metrics of one subject. zero, empty: names of metrics without a plot."""

    title: str
    is_open: bool
    plots: list[PagePlot]
    zero: list[str]
    empty: list[str]


class NodePage(NamedTuple):
    """The content of the page.

    state: shape and word. more: jobs that are not listed; others: jobs of other users. text: a part
    of the names of the metrics that are shown, "": all. left_out: number of metrics without a plot.
    maps: titles and heat maps of cores and cards over time. described: the node for JSON.
    """

    name: str
    has_jobs: bool
    state: tuple[str, str]
    age: str
    is_silent: bool
    tiles: list[ShownTile]
    jobs: list[JobRow]
    more: int
    others: int
    facts: list[tuple[str, str]]
    times: ShownTime
    text: str
    plots: list[PagePlot]
    groups: list[PlotGroup]
    left_out: int
    maps: list[tuple[str, TimedDrawing]]
    described: dict[str, Any]

    @property
    def tables(self) -> dict[str, Any]:
        """Return the tables for JSON."""
        return {"nodes": [self.described]}


async def make_node_page(sources: PageSources, request: PageRequest) -> NodePage | None:
    """Return the page; None if the node is unknown."""
    cluster, name = request.names["cluster"], request.names["node"]
    level = sources.find_node(cluster, name)
    if level is None:
        return None
    now = sources.now
    node = sources.newest.of_node(level)
    times = read_times(request.query, now, "6h", oldest=sources.oldest)
    times = cut_times(times, node.first, node.step)
    running = await sources.jobs.find(JobFilter(cluster, state="running", node=name), _MOST_JOBS)
    mine = [job for job in running if request.viewer.may_see(job.user)]
    listed = await sources.reports.of_many(mine[:_MOST_LISTED])
    is_silent = node.is_silent(now)
    has_jobs = bool(running) or await sources.has_jobs(cluster)
    state = "busy" if running else "idle" if has_jobs else "up"
    metrics, chosen = _find_metrics(level), request.chosen_plots
    text = request.query.get("q", "").strip()[:100].lower()
    groups = _order_metrics(sources, (one for one in metrics if text in one.lower()))
    shown = [one for one in list(groups)[:_MOST_METRICS] if not chosen or one in chosen]
    plots = [_plot(sources, metric, metrics[metric], times, request.points) for metric in shown]
    now_state = STATES["silent" if is_silent else state]
    return NodePage(
        name=name,
        has_jobs=has_jobs,
        state=now_state,
        described=describe_node(node, now_state),
        age=format_age(now - node.last) if node.last else "",
        is_silent=is_silent,
        tiles=[] if is_silent else _tiles(node, running if has_jobs else None),
        jobs=[make_row(one) for one in listed],
        more=len(mine) - len(listed),
        others=len(running) - len(mine),
        facts=[
            ("hardware threads", str(node.cores) if node.cores else "unknown"),
            ("memory", format_quantity(node.memory_total, "B")),
            ("GPUs", ", ".join(shown_text(card.name) for card in node.cards) or "none"),
            ("values every", f"{node.step} s"),
        ],
        times=times,
        text=text,
        plots=plots,
        groups=_group_plots(plots, groups, is_filtered=bool(text)),
        left_out=max(0, len(groups) - _MOST_METRICS),
        maps=[] if chosen or text else _maps(level, times),
    )


def _tiles(node: NodeNow, running: Sequence[StoredJob] | None) -> list[ShownTile]:
    """Return the figures of now. running: None: allocation is unknown."""
    cores = sum(
        job.details.cpus.get(node.name) or (job.details.cores or 0) // max(1, len(job.nodes))
        for job in running or ()
    )
    text = "of " if running is None else f"{cores} of "
    text += plural(node.cores, "core") + (" allocated" if running is not None else "")
    allocated = text if node.cores else "cores unknown"
    used, total = node.memory_used, node.memory_total
    share = used / total if used is not None and total else None

    def detail(field: str, text: str) -> str:
        return f"{text}; coverage {node.coverage[field]}" if field in node.coverage else text

    amounts = f"{format_quantity(used, 'B')} of {format_quantity(total, 'B')}"
    found = [
        ShownTile("CPU", format_share(node.cpu, 1), detail("cpu", allocated), draw_meter(node.cpu)),
        ShownTile(
            "Memory", format_share(used, total), detail("memory", amounts), draw_meter(share)
        ),
    ]
    for number, card in enumerate(node.cards[:8]):
        text = f"{format_quantity(card.memory, 'B')} in use, {format_quantity(card.power, 'W')}"
        value = format_share(card.utilization, 1)
        found.append(ShownTile(f"GPU {number}", value, text, draw_meter(card.utilization)))
    if not node.cards:
        found.append(ShownTile("GPU", "none", "no card has sent values", None))
    power = format_quantity(node.power, "W")
    parts = "not collected here" if node.power is None else "processors, memory and cards"
    found.append(ShownTile("Power", power, detail("power", parts), None))
    minute = detail("load", "mean of a minute")
    return [*found, ShownTile("Load", format_number(node.load), minute, None)]


def _find_metrics(level: StoreLevel) -> dict[str, list[NamedSeries]]:
    """Return the series of the node by metric, else of its parts without jobs."""
    found = {metric: [("", series)] for metric, series in level.series.items()}
    for name, below in level.children.items():
        for metric, series in below.series.items() if not name.startswith("job") else ():
            if metric not in level.series:
                part = shown_text(name.replace("accelerator", "GPU ", 1))
                found.setdefault(metric, []).append((part, series))
    return found


def _order_metrics(sources: PageSources, names: Iterable[str]) -> dict[str, int]:
    """Return the names in the order of groups and readers, with the number of their group."""
    places = {name: place for place, name in enumerate(sources.metrics)}
    groups = {name: _find_group(name, sources.metric(name).reader) for name in names}
    ordered = sorted(groups, key=lambda one: (groups[one], places.get(one, len(places)), one))
    return {name: groups[name] for name in ordered}


def _find_group(name: str, reader: str) -> int:
    """Return the number of the group of a metric in GROUPS; of an unknown one by its name."""
    for number, (_, readers, prefixes) in enumerate(GROUPS):
        if reader in readers or (not reader and name.startswith(prefixes)):
            return number
    return len(GROUPS) - 1


def _group_plots(
    plots: Sequence[PagePlot], groups: Mapping[str, int], *, is_filtered: bool
) -> list[PlotGroup]:
    found: list[PlotGroup] = []
    for number, (title, *_) in enumerate(GROUPS):
        own = [plot for plot in plots if groups[plot.key] == number]
        shown = [plot for plot in own if not (plot.is_empty or plot.is_zero)]
        zero = [plot.key for plot in own if not plot.is_empty and plot.is_zero]
        empty = [plot.key for plot in own if plot.is_empty]
        if own:
            found.append(PlotGroup(title, number < _OPEN or is_filtered, shown, zero, empty))
    return found


def _plot(
    sources: PageSources, metric: str, series: list[NamedSeries], times: ShownTime, points: int
) -> PagePlot:
    known = sources.metric(metric)
    step = min(one.group.frequency for _, one in series)
    grid = make_grid(times.start, times.end, step, min(points, 120) if points <= 240 else points)
    named = [(name or shown_text(metric), one) for name, one in sorted(series, key=_order)]
    return make_plot(
        metric, metric, known.unit, grid, named, factor=known.factor, what="parts",
        top=100.0 if known.unit == "%" else None, description=known.description,
    )  # fmt: skip


def _order(one: NamedSeries) -> tuple[int, str]:
    return len(one[0]), one[0]


def _maps(level: StoreLevel, times: ShownTime) -> list[tuple[str, TimedDrawing]]:
    """Return heat maps of the cores and of the cards."""
    found: list[tuple[str, TimedDrawing]] = []
    for kind, title, metric in (
        ("hwthread", "Use of each hardware thread by programs", "cpu_user"),
        ("accelerator", "Use of each GPU", "acc_utilization"),
    ):
        parts = [
            (name.removeprefix(kind), below.series[metric])
            for name, below in level.children.items()
            if name.startswith(kind) and metric in below.series
        ]
        parts = sorted(parts, key=_order)[:_MOST_ROWS]
        if kind == "accelerator":  # as in the tiles; addresses are long
            parts = [(f"GPU {number}", series) for number, (_, series) in enumerate(parts)]
        if parts:
            found.append((title, _map(title, parts, times)))
    return found


def _map(title: str, parts: list[NamedSeries], times: ShownTime) -> TimedDrawing:
    series = [one for _, one in parts]
    grid = make_grid(times.start, times.end, min(one.group.frequency for one in series), 96)
    means = read_means(series, grid) / 100
    height = 12 if len(parts) <= 16 else 6
    names = [
        shown_text(name) if height > 6 or not number % 8 else ""
        for number, (name, _) in enumerate(parts)
    ]
    if means.size and not np.isnan(means).all():
        title += f": mean {format_share(float(np.nanmean(means)), 1)}"
    return draw_heat_map(means, names, (grid.start, grid.end), height=height, label=title)
