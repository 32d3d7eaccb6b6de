"""The input of pages (the store, its jobs, reports, the request), and the error of access."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError
from ccagent.views.web.data.job_search import JobFilter, JobSearch
from ccagent.views.web.data.jobs import JobReports
from ccagent.views.web.data.lustre import LustreSource
from ccagent.views.web.data.nodes import (
    UNKNOWN,
    HistoryReader,
    NewestValues,
    SeriesFinder,
    shown_metrics,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.stores.metrics.groups import StoreLevel
    from ccagent.stores.metrics.page_settings import WebSettings
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.stores.metrics.usage.keeper import UsageKeeper
    from ccagent.views.web.access import Viewer
    from ccagent.views.web.data.nodes import ShownMetric


_MOST_CHOSEN = 24
"""Maximum number of plots that a viewer may choose for a page."""


class PageSources:
    """Data sources of the pages.

    lustre: a jobstats store; None if not configured. usage: energy of ended jobs; None: unknown.
    simulated: names of simulated clusters.
    """

    def __init__(
        self,
        store: MetricStore,
        jobs: JobSearch,
        settings: WebSettings,
        *,
        retention: int = 172_800,
        simulated: frozenset[str] = frozenset(),
        usage: UsageKeeper | None = None,
    ) -> None:
        """Raise ConfigurationError if the client of the jobstats store can't be loaded."""
        self.store = store
        self.jobs = jobs
        self.metrics = shown_metrics(settings.preset)
        finder = SeriesFinder(store)
        self.newest = NewestValues(store, self.metrics, finder)
        self.history = HistoryReader(store, self.metrics, finder)
        self.reports = JobReports(store, self.metrics, self.newest, settings.thresholds)
        self.lustre = LustreSource(settings) if settings.jobstats else None
        self.usage = usage
        self.retention = retention
        self.simulated = simulated

    async def has_jobs(self, cluster: str) -> bool:
        """Return whether a cluster had jobs in the time of the retention.

        Without the agent `jobs`, pages show the use of nodes, as their allocation is unknown.
        """
        return await self.jobs.count(JobFilter(cluster, self.oldest)) > 0

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
    def only_user(self) -> str | None:
        """Return the user whose jobs the viewer may see; None: all users."""
        return None if self.viewer.is_staff else self.viewer.name

    @property
    def chosen_plots(self) -> frozenset[str]:
        """Return the keys in the parameter `plot`: the parts between commas, and the whole.

        Empty: all plots.
        """
        text = self.query.get("plot", "")
        return frozenset((text, *text.split(","))) if text else frozenset()

    @property
    def listed(self) -> list[str]:
        """Return the keys in the parameter `plots`, which a viewer has chosen for the page."""
        parts = self.query.get("plots", "").split(",")[:_MOST_CHOSEN]
        return list(dict.fromkeys(one for one in parts if one))


class NotAllowedError(CcagentError):
    """The viewer may not see the page. The message is for the viewer."""
