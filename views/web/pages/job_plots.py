"""The plots of a job: CPU, memory and its limit, GPUs, I/O, network, pressure, power."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.views.web.data.buckets import make_grid
from ccagent.views.web.data.job_plots import NamedSeries, make_plot
from ccagent.views.web.data.measured import job_level
from ccagent.views.web.svg.lines import PlotLimit
from ccagent.views.web.words import shown_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.metrics.groups import StoreLevel
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.views.job.report import JobReport
    from ccagent.views.web.context import PageSources
    from ccagent.views.web.data.buckets import TimeGrid
    from ccagent.views.web.plots import PagePlot

_MOST_NODES = 512
_NO_JOBS = "not collected here: the reader cgroup-jobs of the agent metrics sends it"
_NO_CARD = "unknown: the cards do not report it, for example with MIG"


class _Wanted(NamedTuple):
    """A plot of one metric of the job."""

    key: str
    title: str
    metric: str


_OF_JOB = (
    _Wanted("read", "Read from block devices", "job_io_read"),
    _Wanted("write", "Written to block devices", "job_io_write"),
    _Wanted("wait-cpu", "Time waiting for a CPU", "job_pressure_cpu"),
    _Wanted("wait-memory", "Time waiting for memory", "job_pressure_memory"),
    _Wanted("wait-io", "Time waiting for disks", "job_pressure_io"),
)
_OF_NODES = (
    _Wanted("network-in", "Network of its nodes, received", "net_bytes_in"),
    _Wanted("network-out", "Network of its nodes, sent", "net_bytes_out"),
    _Wanted("fabric-in", "InfiniBand of its nodes, received", "ib_recv"),
    _Wanted("fabric-out", "InfiniBand of its nodes, sent", "ib_xmit"),
    _Wanted("power", "Power of the processors of its nodes", "cpu_power"),
)


class JobPlots:
    """Builder of a job's plots over a time range."""

    def __init__(self, sources: PageSources, job: StoredJob, report: JobReport) -> None:
        self._sources = sources
        self._job = job
        self._report = report
        cluster = sources.store.root.children.get(job.cluster)
        found = [cluster.children.get(name) for name in job.nodes[:_MOST_NODES]] if cluster else []
        self._nodes = [node for node in found if node is not None]

    def make(self, start: int, end: int, points: int) -> list[PagePlot]:
        """Return the plots; the plots of the first row come first."""
        grid = make_grid(start, end, self._step(), points)
        plots = [self._cpu(grid), self._memory(grid)]
        if self._report.figures.gpu_count:
            plots += [self._gpu(grid), self._gpu_memory(grid)]
        plots += [self._make(one, list(self._own(one.metric)), grid, _NO_JOBS) for one in _OF_JOB]
        plots += [
            made
            for one in _OF_NODES
            if not (made := self._make(one, list(self._of_nodes(one.metric)), grid)).is_empty
        ]
        return plots

    def _step(self) -> int:
        found = [one.group.frequency for _, one in self._own("job_cpu_util")]
        return min(found, default=60)

    def _own(self, metric: str) -> Iterator[NamedSeries]:
        for node in self._nodes:
            level = job_level(node, self._job.job)
            series = level.series.get(metric) if level is not None else None
            if series is not None:
                yield shown_text(node.path[-1]), series

    def _of_nodes(self, metric: str) -> Iterator[NamedSeries]:
        several = len(self._nodes) > 1
        for node in self._nodes:
            parts = _parts(node, metric)
            for part, series in parts:
                name = shown_text(node.path[-1]) if several or not part else ""
                yield f"{name} {part}".strip(), series

    def _cards(self, metric: str) -> Iterator[NamedSeries]:
        for node in self._nodes:
            name = node.path[-1]
            for number, address in enumerate(self._job.details.cards.get(name, ())):
                level = node.children.get(f"accelerator{address}")
                series = level.series.get(metric) if level is not None else None
                if series is not None:
                    where = f"{shown_text(name)} " if len(self._nodes) > 1 else ""
                    yield f"{where}GPU {number}", series

    def _cpu(self, grid: TimeGrid) -> PagePlot:
        """Return the plot of CPU use, in cores."""
        cores = [node.cores for node in self._report.figures.nodes if node.cores]
        alike = cores[0] if cores and len(set(cores)) == 1 else None
        return make_plot(
            "cpu", "Cores in use" + (" of each node" if len(self._nodes) > 1 else ""), "", grid,
            list(self._own("job_cpu_util")), factor=0.01,
            reason="" if self._has_own() else _NO_JOBS,
            limits=[PlotLimit("cores that the job has", alike)] if alike else [],
        )  # fmt: skip

    def _memory(self, grid: TimeGrid) -> PagePlot:
        limits = [node.memory_limit for node in self._report.figures.nodes if node.memory_limit]
        held = list(self._own("job_mem_rss"))
        if len(held) == 1:
            held = [("programs", held[0][1])]
            held += [("with page cache", one) for _, one in self._own("job_mem_used")]
        elif not held:
            held = list(self._own("job_mem_used"))
        return make_plot(
            "memory", "Memory of programs" + (" on each node" if len(self._nodes) > 1 else ""), "B",
            grid, held, factor=self._sources.metric("job_mem_rss").factor,
            limits=[PlotLimit("limit", limits[0])] if limits and len(set(limits)) == 1 else [],
            reason="" if held else _NO_JOBS,
        )  # fmt: skip

    def _gpu(self, grid: TimeGrid) -> PagePlot:
        found = list(self._cards("acc_utilization"))
        return make_plot(
            "gpu", "GPU use", "%", grid, found, what="GPUs", top=100.0,
            reason="" if found else _NO_CARD,
        )  # fmt: skip

    def _gpu_memory(self, grid: TimeGrid) -> PagePlot:
        return make_plot(
            "gpu-memory", "GPU memory", "B", grid, list(self._cards("acc_mem_used")), what="GPUs",
            factor=self._sources.metric("acc_mem_used").factor,
        )  # fmt: skip

    def _make(
        self, one: _Wanted, series: list[NamedSeries], grid: TimeGrid, reason: str = ""
    ) -> PagePlot:
        metric = self._sources.metric(one.metric)
        return make_plot(
            one.key, one.title, metric.unit, grid, series, factor=metric.factor,
            reason="" if series else reason,
        )  # fmt: skip

    def _has_own(self) -> bool:
        return any(job_level(node, self._job.job) is not None for node in self._nodes)


def _parts(node: StoreLevel, metric: str) -> Iterator[NamedSeries]:
    """Yield a node's series of a metric, else the series of its parts."""
    if metric in node.series:
        yield "", node.series[metric]
        return
    for name, below in node.children.items():
        if metric in below.series and not name.startswith("job"):
            yield shown_text(name), below.series[metric]
