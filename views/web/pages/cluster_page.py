"""The page of a cluster: free resources, jobs with findings, use over time, users, GPUs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from markupsafe import Markup

from ccagent.views.amounts import format_age, format_quantity, format_share
from ccagent.views.web.addresses import ShownTime, jobs_link, node_link, read_times
from ccagent.views.web.data.buckets import SeriesBuckets, make_grid, read_means
from ccagent.views.web.data.job_search import JobFilter
from ccagent.views.web.drawing import (
    GridCell,
    PlotLimit,
    PlotLine,
    draw_cells,
    draw_heat_map,
    draw_meter,
)
from ccagent.views.web.pages.jobs_page import JobRow, make_row
from ccagent.views.web.plots import PagePlot
from ccagent.views.web.rendering import STATES, shown_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ccagent.views.web.context import PageRequest, PageSources
    from ccagent.views.web.data.job_search import RunningUse
    from ccagent.views.web.data.nodes import NodeNow

MOST_VERDICTS = 8
_MOST_JOBS = 400
_MOST_USERS = 8
_MOST_CARDS = 64
_MOST_LISTED = 200


class ShownTile(msgspec.Struct, frozen=True):
    """A figure at the top: used and total amount."""

    label: str
    value: str
    detail: str
    meter: Markup | None


class StateCount(msgspec.Struct, frozen=True):
    """The number of nodes in a state."""

    shape: str
    word: str
    count: int


class UserUse(msgspec.Struct, frozen=True):
    """Resources of the running jobs of a user or account."""

    name: str
    jobs: int
    cores: int
    gpus: int
    link: str


class ListedNode(msgspec.Struct, frozen=True):
    """A row of the table of nodes."""

    name: str
    link: str
    state: str
    age: str
    cpu: str
    memory: str
    gpu: str
    power: str


class ClusterPage(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the page."""

    cluster: str
    times: ShownTime
    tiles: list[ShownTile]
    states: list[StateCount]
    verdicts: list[JobRow]
    verdict_count: int
    judged: int
    judged_all: bool
    plots: list[PagePlot]
    users: list[UserUse]
    accounts: list[UserUse]
    gpu_map: Markup | None
    gpu_text: str
    node_map: Markup
    nodes: list[ListedNode]
    node_count: int
    problem: str = ""


async def make_cluster_page(sources: PageSources, request: PageRequest) -> ClusterPage | None:
    """Return the page; None if the store has no such cluster."""
    cluster = request.names["cluster"]
    level = sources.store.root.children.get(cluster)
    now = sources.now
    if level is None and not await sources.jobs.count(JobFilter(cluster)):
        return None
    times = read_times(request.query, now, oldest=sources.oldest)
    nodes = await sources.newest.of_cluster(cluster)
    running = await sources.jobs.running_use(cluster)
    busy = await sources.jobs.busy_nodes(cluster)
    user = None if request.viewer.is_staff else request.viewer.name
    recent = await sources.jobs.find(
        JobFilter(cluster, times.start, times.end, user=user), _MOST_JOBS
    )
    summaries = await sources.reports.of_many(recent)
    judged = [
        (job, one)
        for job, one in zip(recent, summaries, strict=True)
        if one.report.level in {"BAD", "hint"}
    ]
    judged.sort(key=lambda one: one[1].rank)
    mine = [one for one in running if request.viewer.may_see(one.user)]
    return ClusterPage(
        cluster=cluster,
        times=times,
        tiles=_tiles(nodes, running, now),
        states=_states(nodes, busy, now),
        verdicts=[make_row(*one) for one in judged[:MOST_VERDICTS]],
        verdict_count=len(judged),
        judged=len(recent),
        judged_all=len(recent) < _MOST_JOBS,
        plots=await cluster_plots(sources, cluster, times, request.points, nodes),
        users=_use(mine, cluster, lambda one: one.user),
        accounts=_use(mine, cluster, lambda one: one.account),
        gpu_map=_gpu_map(sources, cluster, nodes, times),
        gpu_text=_gpu_text(nodes),
        node_map=_node_map(cluster, nodes, now),
        nodes=[_listed(cluster, node, busy, now) for node in nodes[:_MOST_LISTED]],
        node_count=len(nodes),
        problem=times.problem,
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

    def plot(key: str, title: str, unit: str, values: NDArray[np.float64], **more: Any) -> PagePlot:
        line = PlotLine(title, SeriesBuckets(values, values, values))
        return PagePlot(
            key=key, title=title, unit=unit, grid=grid, lines=(line,),
            reason="not collected here", **more,
        )  # fmt: skip

    plots = [
        plot("cpu", "CPU use, mean of nodes", "%", found.cpu, top=100.0),
        plot("memory", "Memory in use", "B", found.memory, limits=limits),
    ]
    if any(node.cards for node in nodes):
        plots.append(plot("gpu", "GPU use, mean of cards", "%", found.gpu, top=100.0))
    plots.append(plot("power", "Power", "W", found.power))
    return plots


def _tiles(nodes: Sequence[NodeNow], running: Sequence[RunningUse], now: int) -> list[ShownTile]:
    there = [node for node in nodes if not node.is_silent(now)]
    cores = sum(node.cores for node in there)
    taken = sum(one.cores for one in running)
    asked = sum(one.memory for one in running)
    memory = sum(node.memory_total or 0.0 for node in there)
    used = sum(node.memory_used or 0.0 for node in there)
    cards = [card for node in there for card in node.cards]
    busy = [card for card in cards if (card.utilization or 0.0) > 0]
    given = sum(one.gpus for one in running)
    power = [node.power for node in there if node.power is not None]
    cpu = [node.cpu for node in there if node.cpu is not None]
    mean_cpu = sum(cpu) / len(cpu) if cpu else None
    found = [
        _tile("Cores", taken, cores, f"{format_share(mean_cpu, 1)} in use"),
        _tile("Memory", asked, memory, f"{format_quantity(used, 'B')} in use", "B"),
    ]
    if cards:
        found.append(_tile("GPUs", given, len(cards), f"{len(busy)} in use"))
    total = format_quantity(sum(power), "W") if power else "unknown"
    count = f"of {len(power)} nodes" if power else "not collected here"
    found.append(ShownTile("Power", total, count, None))
    return found


def _tile(label: str, taken: float, total: float, detail: str, unit: str = "") -> ShownTile:
    if not total:
        return ShownTile(label, "unknown", detail, draw_meter(None))
    free, used, whole = (
        format_quantity(one, unit) for one in (max(0.0, total - taken), taken, total)
    )
    text = f"{used} of {whole} allocated; {detail}"
    return ShownTile(label, f"{free} free", text, draw_meter(taken / total))


def _states(nodes: Sequence[NodeNow], busy: set[str], now: int) -> list[StateCount]:
    counts = {"busy": 0, "idle": 0, "silent": 0}
    for node in nodes:
        counts[_state(node, busy, now)] += 1
    return [StateCount(*STATES[name], count) for name, count in counts.items()]


def _state(node: NodeNow, busy: set[str], now: int) -> str:
    if node.is_silent(now):
        return "silent"
    return "busy" if node.name in busy else "idle"


def _use(
    running: Sequence[RunningUse], cluster: str, name_of: Callable[[RunningUse], str]
) -> list[UserUse]:
    groups: defaultdict[str, list[RunningUse]] = defaultdict(list)
    for one in running:
        groups[name_of(one)].append(one)
    found = [
        UserUse(
            shown_text(name) or "unknown",
            sum(one.jobs for one in each),
            sum(one.cores for one in each),
            sum(one.gpus for one in each),
            jobs_link(cluster, q=name, state="running"),
        )
        for name, each in groups.items()
    ]
    return sorted(found, key=lambda one: (-one.cores, one.name))[:_MOST_USERS]


def _gpu_map(
    sources: PageSources, cluster: str, nodes: Sequence[NodeNow], times: ShownTime
) -> Markup | None:
    """Return the use of each card over time; for many cards only the current use."""
    cards = [(node, card) for node in nodes for card in node.cards]
    if not cards:
        return None
    if len(cards) > _MOST_CARDS:
        cells = [
            GridCell(
                f"{shown_text(node.name)} GPU {number}: {format_share(card.utilization, 1)}",
                card.utilization,
                node_link(cluster, node.name),
            )
            for node in nodes
            for number, card in enumerate(node.cards)
        ]
        return draw_cells(cells, label="use of each GPU now")
    grid = make_grid(times.start, times.end, 600, 144)
    rows: list[NDArray[np.float64]] = []
    names: list[str] = []
    for node, card in cards:
        level = sources.store.root.find((cluster, node.name, f"accelerator{card.name}"))
        series = level.series.get("acc_utilization") if level else None
        if series is None:
            rows.append(np.full(grid.size, np.nan))
        else:
            rows.append(read_means([series], grid)[0] / 100)
        names.append(f"{shown_text(node.name)} {node.cards.index(card)}")
    return draw_heat_map(
        np.array(rows), names, (grid.start, grid.end), label="use of each GPU over time"
    )


def _gpu_text(nodes: Sequence[NodeNow]) -> str:
    known = [
        card.utilization for node in nodes for card in node.cards if card.utilization is not None
    ]
    cards = sum(len(node.cards) for node in nodes)
    if not cards:
        return ""
    idle = sum(1 for one in known if one == 0)
    text = f"{cards} GPUs: {idle} at 0 %, mean {format_share(sum(known), len(known) or None)}"
    return text + (f"; {cards - len(known)} not reported" if len(known) < cards else "")


def _node_map(cluster: str, nodes: Sequence[NodeNow], now: int) -> Markup:
    cells = [
        GridCell(
            f"{shown_text(node.name)}: "
            + ("silent" if node.is_silent(now) else f"CPU {format_share(node.cpu, 1)}"),
            None if node.is_silent(now) else node.cpu,
            node_link(cluster, node.name),
        )
        for node in nodes
    ]
    return draw_cells(cells, label="CPU use of each node now")


def _listed(cluster: str, node: NodeNow, busy: set[str], now: int) -> ListedNode:
    gpus = [card.utilization for card in node.cards if card.utilization is not None]
    is_silent = node.is_silent(now)
    return ListedNode(
        name=shown_text(node.name),
        link=node_link(cluster, node.name),
        state=" ".join(STATES[_state(node, busy, now)]),
        age=f"{format_age(now - node.last)} ago" if node.last else "unknown",
        cpu="unknown" if is_silent else format_share(node.cpu, 1),
        memory="unknown" if is_silent else format_share(node.memory_used, node.memory_total),
        gpu=format_share(sum(gpus), len(gpus)) if gpus else ("unknown" if node.cards else "none"),
        power="unknown" if is_silent else format_quantity(node.power, "W"),
    )
