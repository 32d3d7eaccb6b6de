"""The input of pages: data sources (the store, its jobs, reports, a jobstats store), the request.

Viewers share the answers of a jobstats store, and one question of each kind is asked at once: many
viewers cost the store no more than a few. After a question without an answer, none of its kind is
asked for some seconds.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import logger
from ccagent.stores.jobstats.client import StorePlace, UnansweredError, ask_job, ask_live
from ccagent.views.web.data.job_search import JobFilter, JobSearch
from ccagent.views.web.data.jobs import JobReports
from ccagent.views.web.data.nodes import (
    UNKNOWN,
    HistoryReader,
    NewestValues,
    SeriesFinder,
    shown_metrics,
)
from ccagent.views.web.replies import TimedCache

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ccagent.stores.jobstats.live import LiveAnswer, LiveOrder
    from ccagent.stores.jobstats.queries import JobAnswer
    from ccagent.stores.metrics.groups import StoreLevel
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.stores.metrics.page_settings import WebSettings
    from ccagent.stores.metrics.store import MetricStore
    from ccagent.stores.metrics.usage.keeper import UsageKeeper
    from ccagent.views.web.access import Viewer
    from ccagent.views.web.data.nodes import ShownMetric

    T = TypeVar("T")

MOST_LUSTRE_JOBS = 100
"""Jobs of an answer of the jobstats store: the ones with the largest values of its order."""

_LUSTRE_KEPT = 10.0
_PAUSE = 10.0
_LIVE_SECONDS, _JOB_SECONDS = 15.0, 5.0
"""Time limits in seconds. The page of a job has more to show, and waits less."""

_MOST_WAITING = 16
_MOST_ROWS = 100_000

_MOST_CHOSEN = 24
"""Maximum number of plots that a viewer may choose for a page."""


class _Questions:
    """Questions to the jobstats store, one after the other."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="jobstats")
        self._waiting = 0
        self._paused_until, self._reason = 0.0, ""

    async def ask(self, question: Callable[[], T]) -> T:
        """Return the answer. Raise the errors of the question; UnansweredError in a pause."""
        if self._waiting >= _MOST_WAITING:
            raise UnansweredError("too many questions to the jobstats store: try again")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, self._ask_unless_paused, question
            )
        finally:
            self._waiting -= 1

    def _ask_unless_paused(self, question: Callable[[], T]) -> T:
        if time.monotonic() < self._paused_until:
            raise UnansweredError(self._reason)
        try:
            answer = question()
        except UnansweredError as error:
            if str(error) != self._reason:
                logger.warning("pages: jobstats store: %s", error)
            self._paused_until, self._reason = time.monotonic() + _PAUSE, str(error)
            raise
        self._reason = ""
        return answer


class LustreSource:
    """A jobstats store as a source of pages. orders: the names by which jobs can be sorted."""

    def __init__(self, settings: WebSettings) -> None:
        """Load the client. Raise ConfigurationError if its libraries are not installed."""
        try:
            from ccagent.stores.jobstats.live import ORDERS
        except ImportError as error:
            raise ConfigurationError(
                f"web.jobstats: requires the libraries of the jobstats store: {error}"
            ) from None
        self.orders = ORDERS
        place = StorePlace(
            settings.jobstats,
            token_file=settings.jobstats_token_file,
            ca_file=settings.jobstats_ca_file,
        )
        self._live_place = place._replace(seconds=_LIVE_SECONDS)
        self._job_place = place._replace(seconds=_JOB_SECONDS)
        self._live: TimedCache[LiveAnswer] = TimedCache(
            _MOST_ROWS,
            lambda answer: 1 + len(answer.targets) + len(answer.jobs),
            seconds=_LUSTRE_KEPT,
        )
        self._jobs: TimedCache[JobAnswer | None] = TimedCache(
            _MOST_ROWS,
            lambda answer: 1 + (len(answer.totals) + len(answer.rates) if answer else 0),
            seconds=_LUSTRE_KEPT,
        )
        # A job with too much I/O for its time limit must not delay the state of the file systems.
        self._of_live, self._of_jobs = _Questions(), _Questions()

    async def find_live(self, order: LiveOrder, at: int | None) -> LiveAnswer:
        """Return rates of targets and jobs at a time in seconds since 1970, or now.

        Raise UnansweredError, ConfigurationError.
        """
        values = {"sort": order, "limit": str(MOST_LUSTRE_JOBS)}
        if at is not None:
            values["at"] = _moment(at)
        return await self._live.get(
            (order, at), lambda: self._of_live.ask(lambda: ask_live(self._live_place, values))
        )

    async def find_job(self, job: StoredJob, now: int) -> JobAnswer | None:
        """Return the I/O of a job from its start to its end, None without any.

        Raise UnansweredError, ConfigurationError.
        """
        end = min(max(60, now if job.stop is None else job.stop), now)
        begin = min(max(0, job.start), end - 60)
        # One step: rates over time are not shown, and would be most of the answer.
        values = {"from": _moment(begin), "to": _moment(end), "step": f"{end - begin}s"}
        key = job.cluster, job.job, job.start, job.stop
        return await self._jobs.get(
            key, lambda: self._of_jobs.ask(lambda: self._ask_job(job, values))
        )

    def _ask_job(self, job: StoredJob, values: dict[str, str]) -> JobAnswer | None:
        # A store without rules for clusters has all jobs in none.
        for name in (f"{job.job}@{job.cluster}", f"{job.job}@"):
            answer = ask_job(self._job_place, name, values)
            if answer is not None and answer.file_systems:
                return answer if _is_of(answer, job) else None
        return None


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _is_of(answer: JobAnswer, job: StoredJob) -> bool:
    """Return whether Slurm's data of an answer are the job's: other clusters have equal numbers."""
    cluster, user = answer.slurm.get("cluster"), answer.slurm.get("user_name")
    return cluster in {None, "", job.cluster} and user in {None, "", job.user}


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
