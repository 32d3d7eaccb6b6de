"""The page of a cluster: free resources, jobs with findings, use over time, users, GPUs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ccagent.views.amounts import format_quantity, format_share, mean_of_known, plural
from ccagent.views.web.addresses import ShownTime, cluster_link, cut_times, node_link, read_times
from ccagent.views.web.data.buckets import SeriesBuckets, make_grid, read_means
from ccagent.views.web.data.job_search import JobFilter, PartitionUse, RunningUse
from ccagent.views.web.drawing import (
    GridCell,
    PlotLimit,
    PlotLine,
    TimedDrawing,
    draw_cells,
    draw_heat_map,
    draw_meter,
)
from ccagent.views.web.pages.filters import choose_nodes, describe_node, node_columns
from ccagent.views.web.pages.jobs_page import JobRow, make_row
from ccagent.views.web.plots import PagePlot
from ccagent.views.web.rendering import STATES, shown_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from markupsafe import Markup
    from numpy.typing import NDArray

    from ccagent.stores.metrics.job_table import WaitingJob
    from ccagent.views.web.context import PageRequest, PageSources
    from ccagent.views.web.data.nodes import NodeNow
    from ccagent.views.web.pages.filters import SortedColumn

MOST_VERDICTS = 8
_MOST_JOBS = 400
_MOST_USERS = 8
_MOST_CARDS = 64
_MOST_LISTED = 200
_MOST_WAITING = 20


class ShownTile(NamedTuple):
    """A figure at the top of a page: its value, a detail, and a bar."""

    label: str
    value: str
    detail: str
    meter: Markup | None


class UserUse(NamedTuple):
    """Resources of the running jobs of a user or account."""

    name: str
    jobs: int
    cores: int
    gpus: int


class ClusterPage(NamedTuple):
    """The content of the page.

    has_jobs: False: allocation is unknown, and tiles show use. states: shape, word and number of
    nodes. need: numbers of jobs whose verdict is BAD, and a hint. nodes: the first ones of those in
    the address, each with shape and word of its state. waiting: the viewer's jobs that wait
    longest.
    """

    now: int
    times: ShownTime
    has_jobs: bool
    tiles: list[ShownTile]
    states: list[tuple[str, str, int]]
    verdicts: list[JobRow]
    need: tuple[int, int]
    judged: int
    judged_all: bool
    plots: list[PagePlot]
    users: list[UserUse]
    accounts: list[UserUse]
    partitions: list[PartitionUse]
    waiting: list[WaitingJob]
    gpu_map: TimedDrawing | None
    gpu_text: str
    node_map: Markup
    nodes: list[tuple[NodeNow, tuple[str, str]]]
    node_count: int
    node_columns: list[SortedColumn]

    @property
    def tables(self) -> dict[str, Any]:
        """Return the tables for JSON."""
        return {"nodes": [describe_node(*one) for one in self.nodes]}


async def make_cluster_page(sources: PageSources, request: PageRequest) -> ClusterPage | None:
    """Return the page; None if the store has no such cluster."""
    cluster, now = request.names["cluster"], sources.now
    is_known = cluster in sources.store.root.children
    if not is_known and not await sources.jobs.count(JobFilter(cluster)):
        return None
    times = read_times(request.query, now, oldest=sources.oldest)
    nodes = await sources.newest.of_cluster(cluster)
    running = await sources.jobs.running_use(cluster)
    busy = await sources.jobs.busy_nodes(cluster)
    wanted = JobFilter(cluster, times.start, times.end, user=request.only_user)
    recent = await sources.reports.of_many(await sources.jobs.find(wanted, _MOST_JOBS))
    judged = sorted(
        (one for one in recent if one.report.level in {"BAD", "hint"}), key=lambda one: one.rank
    )
    mine = [one for one in running if request.viewer.may_see(one.user)]
    has_jobs = bool(running) or await sources.has_jobs(cluster)
    words = ("busy", "idle", "silent") if has_jobs else ("up", "silent")
    states = [
        "silent" if node.is_silent(now) else words[0] if node.name in busy else words[-2]
        for node in nodes
    ]
    first = min((node.first for node in nodes if node.first), default=0)
    shown = cut_times(times, first, max((node.step for node in nodes), default=60))
    sending = [node for node in nodes if not node.is_silent(now)]
    return ClusterPage(
        now=now,
        times=shown,
        has_jobs=has_jobs,
        tiles=_tiles(sending, running if has_jobs else None),
        states=[(*STATES[name], states.count(name)) for name in words],
        verdicts=[make_row(one) for one in judged[:MOST_VERDICTS]],
        need=(
            sum(one.report.level == "BAD" for one in judged),
            sum(one.report.level == "hint" for one in judged),
        ),
        judged=len(recent),
        judged_all=len(recent) < _MOST_JOBS,
        plots=await cluster_plots(sources, cluster, shown, request.points, nodes),
        users=_sum_use(mine, lambda one: one.user),
        accounts=_sum_use(mine, lambda one: one.account),
        partitions=await sources.jobs.partitions(cluster),
        waiting=await sources.jobs.waiting(cluster, request.only_user, _MOST_WAITING),
        gpu_map=_gpu_map(sources, cluster, nodes, shown),
        gpu_text=_gpu_text(nodes),
        node_map=_node_map(cluster, nodes, now),
        nodes=choose_nodes(
            [(node, STATES[state]) for node, state in zip(nodes, states, strict=True)],
            request.query,
        )[: _MOST_LISTED if request.points <= 240 else None],
        node_count=len(nodes),
        node_columns=node_columns(cluster_link(cluster), request.query),
    )


async def cluster_plots(
    sources: PageSources, cluster: str, times: ShownTime, points: int, nodes: Sequence[NodeNow]
) -> list[PagePlot]:
    """Return the plots of use over time."""
    step = max((node.step for node in nodes), default=60)
    grid = make_grid(times.start, times.end, step, points)
    found = await sources.history.read(cluster, grid)
    total = sum(node.memory_total or 0.0 for node in nodes)
    limits = (PlotLimit("all memory", total),) if total else ()

    def plot(key: str, title: str, unit: str, what: str, **more: Any) -> PagePlot:
        values: NDArray[np.float64] = getattr(found, key)
        line = PlotLine(title, SeriesBuckets(values, values, values))
        coverage = found.coverage.get(key)
        return PagePlot(
            key=key, title=title, unit=unit, grid=grid, lines=(line,),
            note=f"coverage {coverage} {what}" if coverage else "",
            reason="not collected here", **more,
        )  # fmt: skip

    plots = [
        plot("cpu", "CPU use, mean of nodes", "%", "nodes", top=100.0),
        plot("memory", "Memory in use", "B", "series", limits=limits),
    ]
    if any(node.cards for node in nodes):
        plots.append(plot("gpu", "GPU use, mean of cards", "%", "GPUs", top=100.0))
    plots.append(plot("power", "Power", "W", "series"))
    return plots


def _tiles(nodes: Sequence[NodeNow], running: Sequence[RunningUse] | None) -> list[ShownTile]:
    """Return the figures of the nodes that are not silent. running: None: allocation is unknown."""
    memory = [node.memory_used for node in nodes if node.memory_used is not None]
    cards = [card for node in nodes for card in node.cards]
    power = [node.power for node in nodes if node.power is not None]
    cpu = [node.cpu for node in nodes if node.cpu is not None]
    mean_cpu = mean_of_known(cpu)
    cores = sum(node.cores for node in nodes)
    whole = sum(node.memory_total or 0.0 for node in nodes)
    busy = sum(1 for card in cards if (card.utilization or 0.0) > 0)
    if running is None:
        tiles = [
            _use_tile("Cores", mean_cpu, f"of {plural(cores, 'core')}{_on_nodes(cpu, nodes)}"),
            _use_tile("Memory", sum(memory) / whole if memory and whole else None,
                      f"{format_quantity(sum(memory), 'B')} of {format_quantity(whole, 'B')}"
                      + _on_nodes(memory, nodes)),
        ]  # fmt: skip
        if cards:
            mean = mean_of_known(card.utilization for card in cards)
            tiles.append(_use_tile("GPUs", mean, f"mean; {busy} of {len(cards)} above 0 %"))
    else:
        used = f"{format_quantity(sum(memory), 'B')} in use{_on_nodes(memory, nodes)}"
        tiles = [
            _tile("Cores", sum(one.cores for one in running), cores,
                  f"{format_share(mean_cpu, 1)} in use{_on_nodes(cpu, nodes)}"),
            _tile("Memory", sum(one.memory for one in running), whole, used, "B"),
        ]  # fmt: skip
        if cards:
            given = sum(one.gpus for one in running)
            tiles.append(_tile("GPUs", given, len(cards), f"{busy} in use"))
    total = format_quantity(sum(power), "W") if power else "unknown"
    count = "not collected here"
    if power:
        count = _on_nodes(power, nodes).strip() or f"of {plural(len(power), 'node')}"
    return [*tiles, ShownTile("Power", total, count, None)]


def _on_nodes(known: Sequence[float], nodes: Sequence[NodeNow]) -> str:
    """Return a text on the number of nodes that report a value; empty for all or none."""
    return f" of {len(known)} of {len(nodes)} nodes" if 0 < len(known) < len(nodes) else ""


def _tile(label: str, taken: float, total: float, detail: str, unit: str = "") -> ShownTile:
    if not total:
        return ShownTile(label, "unknown", detail, draw_meter(None))
    free, used, whole = (
        format_quantity(one, unit) for one in (max(0.0, total - taken), taken, total)
    )
    text = f"{used} of {whole} allocated; {detail}"
    return ShownTile(label, f"{free} free", text, draw_meter(taken / total))


def _use_tile(label: str, share: float | None, detail: str) -> ShownTile:
    text = "unknown" if share is None else f"{format_share(share, 1)} in use"
    return ShownTile(label, text, detail, draw_meter(share))


def _sum_use(running: Sequence[RunningUse], name_of: Callable[[RunningUse], str]) -> list[UserUse]:
    """Return the sums by user or account, the most cores first."""
    groups: defaultdict[str, list[RunningUse]] = defaultdict(list)
    for one in running:
        groups[name_of(one)].append(one)
    sums = [
        UserUse(
            name,
            sum(one.jobs for one in each),
            sum(one.cores for one in each),
            sum(one.gpus for one in each),
        )
        for name, each in groups.items()
    ]
    return sorted(sums, key=lambda one: (-one.cores, shown_text(one.name) or "unknown"))[
        :_MOST_USERS
    ]


def _gpu_map(
    sources: PageSources, cluster: str, nodes: Sequence[NodeNow], times: ShownTime
) -> TimedDrawing | None:
    """Return the use of each card over time; for many cards only the current use."""
    cards = [(node, number, card) for node in nodes for number, card in enumerate(node.cards)]
    if not cards:
        return None
    if len(cards) > _MOST_CARDS:
        cells = [
            GridCell(
                f"{shown_text(node.name)} GPU {number}: {format_share(card.utilization, 1)}",
                card.utilization,
                node_link(cluster, node.name),
            )
            for node, number, card in cards
        ]
        return TimedDrawing(draw_cells(cells, label="use of each GPU now"))
    step = 600 if times.end - times.start > 7200 else max(node.step for node in nodes)
    grid = make_grid(times.start, times.end, step, 144)
    rows: list[NDArray[np.float64]] = []
    for node, _, card in cards:
        series = sources.store.find(
            (cluster, node.name, f"accelerator{card.name}"), "acc_utilization"
        )
        missing = np.full(grid.size, np.nan)
        rows.append(missing if series is None else read_means([series], grid)[0] / 100)
    return draw_heat_map(
        np.array(rows), [f"{shown_text(node.name)} {number}" for node, number, _ in cards],
        (grid.start, grid.end), label="use of each GPU over time",
    )  # fmt: skip


def _gpu_text(nodes: Sequence[NodeNow]) -> str:
    cards = [card.utilization for node in nodes for card in node.cards]
    known = [one for one in cards if one is not None]
    if not cards:
        return ""
    idle = sum(1 for one in known if one == 0)
    mean = format_share(sum(known), len(known) or None)
    text = f"{len(cards)} GPUs: {idle} at 0 %, mean {mean}"
    return text + (f"; {len(cards) - len(known)} not reported" if len(known) < len(cards) else "")


def _node_map(cluster: str, nodes: Sequence[NodeNow], now: int) -> Markup:
    cells: list[GridCell] = []
    for node in nodes:
        is_silent = node.is_silent(now)
        text = "silent" if is_silent else f"CPU {format_share(node.cpu, 1)}"
        cells.append(
            GridCell(
                f"{shown_text(node.name)}: {text}",
                None if is_silent else node.cpu,
                node_link(cluster, node.name),
            )
        )
    return draw_cells(cells, label="CPU use of each node now")
