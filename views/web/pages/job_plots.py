"""The plots of a job: CPU, memory, GPUs, I/O, network, pressure, power, energy, roofline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup, escape

from ccagent.stores.metrics.usage.job_energy import job_level
from ccagent.views.amounts import format_number, format_quantity
from ccagent.views.web.data.buckets import TimeGrid, make_grid, mean_of, read_means
from ccagent.views.web.drawing import HEIGHT, PlotLimit, share_class
from ccagent.views.web.plots import NamedSeries, PagePlot, make_plot
from ccagent.views.web.rendering import escape_label, shown_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoredSeries, StoreLevel
    from ccagent.views.web.context import PageSources

    Values = NDArray[np.float64]
    from collections.abc import Iterator

    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.views.job.rules import JobReport
    from ccagent.views.web.data.jobs import JobParts


_MOST_NODES = 512
_MOST_ASKED, _MOST_OTHERS = 4, 150
"""Maxima for the choice of plots: nodes that are asked for metrics, and other metrics."""

_NO_JOBS = "not collected here: the reader cgroup-jobs of the agent metrics sends it"
_NO_CARD = "unknown: the cards do not report it, for example with MIG"
_OF_JOB = (
    ("read", "Read from block devices", "job_io_read"),
    ("write", "Written to block devices", "job_io_write"),
    ("wait-cpu", "Time waiting for a CPU", "job_pressure_cpu"),
    ("wait-memory", "Time waiting for memory", "job_pressure_memory"),
    ("wait-io", "Time waiting for disks", "job_pressure_io"),
)
"""Plots of a metric of the job: key, title, metric."""

_OF_NODES = (
    ("network-in", "Network of its nodes, received", "net_bytes_in"),
    ("network-out", "Network of its nodes, sent", "net_bytes_out"),
    ("fabric-in", "InfiniBand of its nodes, received", "ib_recv"),
    ("fabric-out", "InfiniBand of its nodes, sent", "ib_xmit"),
    ("power", "Power of the processors of its nodes", "cpu_power"),
)
"""Plots of a metric of the nodes, if they have values."""


class JobPlots:
    """Builder of a job's plots over a time range. nodes: those of the job that send values."""

    def __init__(self, sources: PageSources, job: StoredJob) -> None:
        self._sources = sources
        self._job = job
        cluster = sources.store.root.children.get(job.cluster)
        found = [cluster.children.get(name) for name in job.nodes[:_MOST_NODES]] if cluster else []
        self.nodes = [node for node in found if node is not None]

    def choices(self, plots: list[PagePlot]) -> list[tuple[str, str]]:
        """Return key and title of the usual plots, and the other metrics of the job's nodes."""
        usual = [(one.key, one.title) for one in plots]
        known = {"job_cpu_util", "job_mem_rss", "job_mem_used", "acc_utilization", "acc_mem_used",
                 *(one[2] for one in (*_OF_JOB, *_OF_NODES))}  # fmt: skip
        found: set[str] = set()
        for node in self.nodes[:_MOST_ASKED]:
            levels = [job_level(node, self._job.job), node, *(
                below for name, below in node.children.items() if not name.startswith("job")
            )]  # fmt: skip
            found.update(*(level.series.keys() for level in levels if level is not None))
        others = sorted(one for one in found - known if "," not in one)[:_MOST_OTHERS]
        return usual + [(one, one) for one in others]

    def make(
        self, report: JobReport, start: int, end: int, points: int, chosen: Sequence[str] = ()
    ) -> list[PagePlot]:
        """Return the usual plots; the plots of the first row come first.

        chosen: keys of usual plots, and names of metrics: instead these, in this order.
        """
        used = self.of_job("job_cpu_util")
        step = min((one.group.frequency for _, one in used), default=60)
        grid = make_grid(start, end, step, points)

        def plot(
            key: str, title: str, metric: str, series: list[NamedSeries], **more: Any
        ) -> PagePlot:
            known = self._sources.metric(metric)
            options: dict[str, Any] = {"unit": known.unit, "factor": known.factor, **more}
            return make_plot(key, title, grid=grid, series=series, **options)

        several, figures = len(self.nodes) > 1, report.figures
        has_own = any(job_level(node, self._job.job) is not None for node in self.nodes)
        plots = [
            plot("cpu", "Cores in use" + (" of each node" if several else ""), "", used, unit="",
                 factor=0.01, reason="" if has_own else _NO_JOBS,
                 limits=_limit("cores that the job has", [one.cores for one in figures.nodes])),
            plot("memory", "Memory of programs" + (" on each node" if several else ""),
                 "job_mem_rss", memory := self._memory(), unit="B",
                 what="nodes" if several else "series",
                 reason="" if memory else _NO_JOBS,
                 limits=_limit("limit", [one.memory_limit for one in figures.nodes])),
        ]  # fmt: skip
        if figures.gpu_count:
            cards = self.of_cards("acc_utilization")
            plots += [
                plot("gpu", "GPU use", "", cards, unit="%", what="GPUs", top=100.0,
                     reason="" if cards else _NO_CARD),
                plot("gpu-memory", "GPU memory", "acc_mem_used", self.of_cards("acc_mem_used"),
                     unit="B", what="GPUs"),
            ]  # fmt: skip
        for key, title, metric in _OF_JOB:
            own = self.of_job(metric)
            plots.append(plot(key, title, metric, own, reason="" if own else _NO_JOBS))
        of_nodes = [plot(*one, self._of_nodes(one[2]), what="series") for one in _OF_NODES]
        plots += [one for one in of_nodes if not one.is_empty]
        if not chosen:
            return plots
        usual = {one.key: one for one in plots}
        named = {one: self.of_job(one) or self._of_nodes(one) for one in chosen if one not in usual}
        return [
            usual[one] if one in usual else plot(one, one, one, named[one], what="series")
            for one in chosen
        ]

    def of_job(self, metric: str) -> list[NamedSeries]:
        """Return the job's own series of a metric, by node."""
        levels = [(node, job_level(node, self._job.job)) for node in self.nodes]
        return [
            (shown_text(node.path[-1]), level.series[metric])
            for node, level in levels
            if level is not None and metric in level.series
        ]

    def _memory(self) -> list[NamedSeries]:
        """Return the memory of programs on each node; with the page cache on a single node."""
        held = self.of_job("job_mem_rss")
        if len(held) == 1:
            charged = [("with page cache", one) for _, one in self.of_job("job_mem_used")]
            return [("programs", held[0][1]), *charged]
        return held or self.of_job("job_mem_used")

    def _of_nodes(self, metric: str) -> list[NamedSeries]:
        several = len(self.nodes) > 1
        return [
            (f"{shown_text(node.path[-1]) if several or not part else ''} {part}".strip(), series)
            for node in self.nodes
            for part, series in _parts(node, metric)
        ]

    def of_cards(self, metric: str) -> list[NamedSeries]:
        """Return the series of the job's cards."""
        found: list[NamedSeries] = []
        for node in self.nodes:
            name = node.path[-1]
            for number, address in enumerate(self._job.details.cards.get(name, ())):
                level = node.children.get(f"accelerator{address}")
                if level is not None and metric in level.series:
                    where = f"{shown_text(name)} " if len(self.nodes) > 1 else ""
                    found.append((f"{where}GPU {number}", level.series[metric]))
        return found


def _limit(name: str, amounts: list[float | None]) -> list[PlotLimit]:
    """Return the limit of all nodes; none if they differ. Unknown limits are ignored."""
    known = {one for one in amounts if one}
    return [PlotLimit(name, known.pop())] if len(known) == 1 else []


def _parts(node: StoreLevel, metric: str) -> Iterator[NamedSeries]:
    """Yield a node's series of a metric, else the series of its parts."""
    if metric in node.series:
        yield "", node.series[metric]
        return
    for name, below in node.children.items():
        if metric in below.series and not name.startswith("job"):
            yield shown_text(name), below.series[metric]


_PARTS = {"cpu": "processors", "memory": "memory", "gpu": "GPUs", "other": "other"}


def describe_energy(found: JobParts, nodes: int) -> str:
    """Return a text with a job's measured energy by part. nodes: number of nodes of the job."""
    parts: dict[str, float] = {}
    for (part, _), joules in found.joules.items():
        parts[part] = parts.get(part, 0.0) + joules
    known = [part for part in _PARTS if part in parts]
    others = sorted(parts.keys() - _PARTS.keys())[:4]
    texts = [
        f"{_PARTS.get(part) or shown_text(part)} {_amount(parts[part])}" for part in known + others
    ]
    text = f"{_amount(sum(parts.values()))}: {', '.join(texts)}"
    idle = sum(joules for (_, share), joules in found.joules.items() if share == "idle")
    if idle:
        text += f"; {_amount(idle)} of it idle"
    return text if found.nodes == nodes else f"{text}; of {found.nodes} of {nodes} nodes"


def _amount(joules: float) -> str:
    return format_quantity(joules / 3600, "Wh")


_FLOPS, _BANDWIDTH = "flops_any", "mem_bw"
_POINTS = 120
_SIZE = 1000
"""Width and height of the drawing in units of its paths."""

_MARGIN = 14


class Roofline(NamedTuple):
    """A drawing, and a sentence with its figures."""

    drawing: Markup
    text: str


def make_roofline(
    sources: PageSources, nodes: Sequence[StoreLevel], start: int, end: int
) -> Roofline | None:
    """Return the roofline of nodes over a time; None if they send no operations or no traffic."""
    flops = [one for node in nodes for one in node.find_series(_FLOPS)]
    traffic = [one for node in nodes for one in node.find_series(_BANDWIDTH)]
    if not flops or not traffic:
        return None
    step = min(one.group.frequency for one in (*flops, *traffic))
    grid = make_grid(start, end, step, _POINTS)
    operations = _sum(flops, grid) * sources.metric(_FLOPS).factor
    moved = _sum(traffic, grid) * sources.metric(_BANDWIDTH).factor
    with np.errstate(invalid="ignore", divide="ignore"):
        intensity = operations / moved
    is_there = (operations > 0) & (moved > 0) & np.isfinite(intensity) & (intensity > 0)
    if not is_there.any():
        return None
    mean = float(mean_of(operations[is_there], 0)), float(mean_of(moved[is_there], 0))
    text = (
        f"mean {format_quantity(mean[0], 'Flops/s')} at {format_number(mean[0] / mean[1])} Flops/B;"
        f" highest {format_quantity(float(operations[is_there].max()), 'Flops/s')} and"
        f" {format_quantity(float(moved[is_there].max()), 'B/s')}"
    )
    return Roofline(
        _draw(intensity, operations, float(moved[is_there].max()), is_there, text), text
    )


def _sum(series: Sequence[StoredSeries], grid: TimeGrid) -> Values:
    """Return the sum of series at each time at which all that send have a value."""
    rows = read_means(series, grid)
    rows = rows[~np.isnan(rows).all(axis=1)]
    return rows.sum(axis=0) if len(rows) else np.full(grid.size, np.nan)


def _decades(values: Values) -> tuple[int, int]:
    """Return the powers of ten around positive values, at most 12 apart."""
    high = math.ceil(math.log10(float(values.max())) + 1e-9)
    low = math.floor(math.log10(float(values.min())) - 1e-9)
    return max(low, high - 12), max(high, low + 1)


def _draw(
    intensity: Values, operations: Values, bandwidth: float, is_there: NDArray[np.bool_], text: str
) -> Markup:
    """Return the drawing: a dot per time, from dark (first) to light (last), and both roofs."""
    left, right = _decades(intensity[is_there])
    bottom, top = _decades(operations[is_there])

    def across(value: float) -> float:
        return _SIZE * (math.log10(value) - left) / (right - left)

    def down(value: float) -> float:
        return _SIZE * (top - math.log10(value)) / (top - bottom)

    dots: dict[str, list[str]] = {}
    for place in np.flatnonzero(is_there).tolist():
        name = share_class(min(0.999, place / len(intensity)))
        x, y = across(float(intensity[place])), down(float(operations[place]))
        dots.setdefault(name, []).append(f"M{x - 4:.0f} {y - 15:.0f}h8v30h-8z")
    grid = "".join(f"M{_SIZE * n / (right - left):.0f} 0V{_SIZE}" for n in range(right - left + 1))
    grid += "".join(f"M0 {_SIZE * n / (top - bottom):.0f}H{_SIZE}" for n in range(top - bottom + 1))
    highest = float(operations[is_there].max())
    ridge = highest / bandwidth
    # The roofs: the highest traffic, then the highest rate of operations.
    start = 10.0**left
    roof = f"M0 {down(max(bandwidth * start, 10.0**bottom)):.0f}"
    if bandwidth * start < 10.0**bottom:
        roof = f"M{across(10.0**bottom / bandwidth):.0f} {_SIZE}"
    if ridge < 10.0**right:
        roof += f"L{across(max(ridge, start)):.0f} {down(highest):.0f}H{_SIZE}"
    else:
        roof += f"L{_SIZE} {down(max(bandwidth * 10.0**right, 10.0**bottom)):.0f}"
    rows = [10.0**power for power in range(bottom, top + 1)]
    labels = "".join(
        f'<text x="66" y="{_MARGIN + HEIGHT * down(one) / _SIZE + 4:.0f}">'
        f"{escape(format_quantity(one, 'F/s'))}</text>"
        for one in rows
    )
    ticks = "".join(
        f'<text x="{100 * (power - left) / (right - left):.1f}%" y="12">'
        f"{format_number(10.0**power)}</text>"
        for power in range(left, right + 1)
    )
    body = "".join(f'<path class="{name}" d="{"".join(d)}"/>' for name, d in sorted(dots.items()))
    label = escape_label(f"Roofline: {text}")
    height, edge = HEIGHT + 2 * _MARGIN, round(_SIZE * _MARGIN / HEIGHT)
    return Markup(  # noqa: S704 - texts in it are escaped above
        f'<svg class="values" width="70" height="{height}" aria-hidden="true">{labels}</svg>'
        f'<svg class="roof" role="img" aria-label="{label}" width="100%"'
        f' height="{height}" viewBox="0 {-edge} {_SIZE} {_SIZE + 2 * edge}"'
        f' preserveAspectRatio="none"><path class="grid" d="{grid}"/>'
        f'<path class="limit" d="{roof}"/>{body}</svg>'
        f'<svg class="times" width="100%" height="16" aria-hidden="true">{ticks}</svg>'
    )
