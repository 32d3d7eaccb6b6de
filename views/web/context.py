"""The input of pages: the store, its jobs, reports, and the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.views.web.data.history import HistoryReader
from ccagent.views.web.data.measured import JobReports
from ccagent.views.web.data.metric_units import UNKNOWN, shown_metrics
from ccagent.views.web.data.newest import NewestValues
from ccagent.views.web.data.node_series import SeriesFinder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.stores.metrics.groups import StoreLevel
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.views.job.thresholds import JobThresholds
    from ccagent.views.web.access import Viewer
    from ccagent.views.web.data.job_search import JobSearch
    from ccagent.views.web.data.metric_units import ShownMetric
    from ccagent.views.web.settings import WebSettings


class PageSources:
    """Data sources of the pages. simulated: names of simulated clusters."""

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
        """Return the start of the retention, in seconds since 1970."""
        return self.now - self.retention - 3600

    @property
    def now(self) -> int:
        """Return the store's time in seconds since 1970."""
        return int(self.store.now())

    def metric(self, name: str) -> ShownMetric:
        """Return unit and factor of a metric."""
        return self.metrics.get(name, UNKNOWN)

    def find_node(self, cluster: str, node: str) -> StoreLevel | None:
        """Return the level of a node."""
        return self.store.root.find((cluster, node))


class PageRequest(NamedTuple):
    """A request for a page. names: parameters of its path. query: parameters of its query."""

    viewer: Viewer
    names: Mapping[str, str]
    query: Mapping[str, str]
    points: int = 240

    @property
    def chosen_plots(self) -> frozenset[str]:
        """Return the keys of the requested plots; empty: all plots."""
        return split_keys(self.query.get("plot", ""))


def split_keys(text: str) -> frozenset[str]:
    """Return the keys in the query's parameter `plot`: the parts between commas, and the whole."""
    return frozenset((text, *text.split(","))) if text else frozenset()
