"""What pages are made from: the store, its jobs, reports, and who looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.views.web.data.history import HistoryReader
from ccagent.views.web.data.measured import JobReports
from ccagent.views.web.data.metric_units import UNKNOWN, shown_metrics
from ccagent.views.web.data.newest import NewestValues
from ccagent.views.web.data.node_series import SeriesFinder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.stores.metrics.levels import StoreLevel
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.views.job.thresholds import JobThresholds
    from ccagent.views.web.access import Viewer
    from ccagent.views.web.data.job_search import JobSearch
    from ccagent.views.web.data.metric_units import ShownMetric
    from ccagent.views.web.settings import WebSettings


class PageSources:
    """Where pages read from. simulated: clusters that do not exist."""

    def __init__(
        self,
        store: MetricStore,
        jobs: JobSearch,
        settings: WebSettings,
        *,
        thresholds: JobThresholds | None = None,
        retention: int = 172_800,
        simulated: frozenset[str] = frozenset(),
    ) -> None:
        self.store = store
        self.jobs = jobs
        self.metrics = shown_metrics(settings.preset)
        finder = SeriesFinder(store)
        self.newest = NewestValues(store, self.metrics, finder)
        self.history = HistoryReader(store, self.metrics, finder)
        self.reports = JobReports(store, self.metrics, self.newest, thresholds)
        self.retention = retention
        self.simulated = simulated

    @property
    def oldest(self) -> int:
        """Return the time before which there are no values."""
        return self.now - self.retention - 3600

    @property
    def now(self) -> int:
        """Return the store's time in seconds since 1970."""
        return int(self.store.now())

    def metric(self, name: str) -> ShownMetric:
        """Return how a metric is shown."""
        return self.metrics.get(name, UNKNOWN)

    def find_node(self, cluster: str, node: str) -> StoreLevel | None:
        """Return the level of a node."""
        return self.store.root.find((cluster, node))


class PageRequest(NamedTuple):
    """A request for a page. names: parts of its path. query: the rest of its address."""

    viewer: Viewer
    names: Mapping[str, str]
    query: Mapping[str, str]
    points: int = 240

    @property
    def chosen_plots(self) -> frozenset[str]:
        """Return the keys of the plots that are wanted alone; empty: all."""
        return split_keys(self.query.get("plot", ""))


def split_keys(text: str) -> frozenset[str]:
    """Return the keys of plots that an address names: one, which may have commas, or several."""
    return frozenset((text, *text.split(","))) if text else frozenset()
