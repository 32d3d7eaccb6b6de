"""The agent `lustre`: I/O of jobs from the jobstats of this server's targets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.base import Agent
from ccagent.agents.lustre.jobstats.series import Series
from ccagent.agents.lustre.jobstats.source import JobstatsSource
from ccagent.agents.lustre.settings import LustreSettings
from ccagent.errors import CcagentError, NotHereError
from ccagent.log import logger
from ccagent.records.json_encoding import JsonArray
from ccagent.records.message import FORMATS, Format, Record
from ccagent.records.points import Point

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ccagent.agents.lustre.jobstats.records import JobTotals, RecordMaker, Value
    from ccagent.agents.lustre.statistics import ClientRates
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node


__all__ = ["LustreAgent", "LustreSettings"]


class LustreAgent(Agent[LustreSettings]):
    """Samples jobstats of an OSS or MDS: records of each entry, counters of each job."""

    name = "lustre"
    formats: ClassVar[frozenset[Format]] = frozenset(FORMATS)
    extras: ClassVar[frozenset[str]] = frozenset()
    Settings = LustreSettings

    def __init__(self, settings: LustreSettings, wanted: frozenset[Format]) -> None:
        super().__init__(settings, wanted)
        self._source = JobstatsSource(
            settings.source,
            settings.lctl,
            os.path.abspath(settings.input) if settings.input else "",
            settings.target_time_limit.seconds,
        )
        self._series = Series(
            settings.state_file, settings.max_entries, settings.cleanup_interval.seconds
        )
        self._counters: JobTotals | None = None
        self._maker: RecordMaker | None = None
        self._before: float | None = None
        self._client_rates: ClientRates | None = None

    def checks(self, node: Node) -> Iterator[Check]:
        """Return the checks of targets, lctl, and mounted file systems."""
        from ccagent.agents.lustre.jobstats.setup import check_lustre

        settings = self.settings
        return check_lustre(
            node,
            self._source,
            has_jobstats=settings.jobstats,
            statistics=settings.statistics,
            lctl=settings.lctl,
        )

    def sample(self, node: Node) -> Iterator[Record]:
        """Read all targets once. Yield arrays of records during reading, and points at the end.

        Raise NotHereError without a Lustre server. If nothing could be read, log the reason and set
        `is_blind`.
        """
        now = node.clock.time()
        tags = {"cluster": node.cluster, "hostname": node.hostname, "type": "node"}
        failure: CcagentError | None = None
        if self.settings.jobstats:
            failure = yield from self._jobstats(node, now, tags)
        if self.settings.statistics and "line" in self.wanted:
            if not self.settings.jobstats:
                failure = NotHereError("no statistics of Lustre on this node")
            for point in self._statistics(node, now, tags):
                failure = None
                yield point
        self.is_blind = failure is not None
        # A standby server has no targets. That is no error.
        if failure is not None and (self.is_only_sample or not isinstance(failure, NotHereError)):
            logger.error("agent lustre: %s", failure)

    def _jobstats(
        self, node: Node, now: float, tags: dict[str, str]
    ) -> Generator[Record, None, CcagentError | None]:
        """Yield records and points of jobstats. Return the error if no target could be read."""
        from ccagent.agents.lustre.jobstats.observation import Observation
        from ccagent.agents.lustre.jobstats.records import JobTotals, RecordMaker

        moment = node.clock.monotonic()
        wants_points = "line" in self.wanted
        if self.is_only_sample and not self.settings.state_file:
            self._series.forgets = True
        if self._maker is None or self._counters is None:
            self._maker = RecordMaker(node, self.settings)
            self._counters = JobTotals(self.settings.max_jobs, self._series.totals)
        observation = Observation(
            now,
            self.settings,
            self._series,
            self._maker,
            self._counters if wants_points else None,
            wants_records="sonar" in self.wanted,
        )
        batch: list[dict[str, Value]] = []
        for record in observation.records(self._source, node):
            batch.append(record)
            if len(batch) >= self.settings.batch_size:
                yield JsonArray("lustre", batch)
                batch = []
        if batch:
            yield JsonArray("lustre", batch)
        if wants_points:
            before = self._before if self.settings.rates else None
            interval = None if before is None else moment - before
            yield from self._counters.points(tags, now, interval)
            for name, count in sorted(observation.counts.items()):
                yield Point(f"lustre_jobstats_{name}", tags, count, now)
            if self.settings.state_file:
                self._series.totals = self._counters.kept(now)
        self._before = moment
        return observation.failure

    def _statistics(self, node: Node, now: float, tags: dict[str, str]) -> Iterator[Point]:
        from ccagent.agents.lustre.statistics import ClientRates, points_of, read_statistics

        settings = self.settings
        errors: list[str] = []
        limit = settings.target_time_limit.seconds
        parameters = read_statistics(node, settings.statistics, settings.lctl, limit, errors)
        yield from points_of(parameters, settings.statistics, tags, now, errors)
        if settings.rates and "llite" in settings.statistics:
            if self._client_rates is None:
                self._client_rates = ClientRates()
            yield from self._client_rates.points(parameters, tags, now, node.clock.monotonic())
        for error in errors:
            logger.warning("agent lustre: %s", error)

    def save_state(self) -> None:
        """Write the state file. Its records are delivered or queued."""
        self._series.save()
