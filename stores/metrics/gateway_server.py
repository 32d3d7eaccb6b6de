"""The gateway process: the store's interface in front of VictoriaMetrics."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.service.lock import Lock
from ccagent.service.private_directories import make_directory
from ccagent.stores.metrics.engine_commit import EngineCommit
from ccagent.stores.metrics.engine_ingest import EngineIngest
from ccagent.stores.metrics.gateway import EngineSource, GatewayApi
from ccagent.stores.metrics.job_events import JobEvents
from ccagent.stores.metrics.job_queries import FootprintKeeper
from ccagent.stores.metrics.job_table import find_ended_jobs, open_jobs
from ccagent.stores.metrics.listening import ListeningServer
from ccagent.stores.metrics.own_metrics import describe_gateway
from ccagent.stores.metrics.part_limits import PartLimits
from ccagent.stores.metrics.query import QueryLimits
from ccagent.stores.metrics.series_limits import SeriesLimits, plan_memory
from ccagent.stores.metrics.settings import parse_size
from ccagent.stores.metrics.store import MetricStore
from ccagent.stores.metrics.tokens import TokenVerifier
from ccagent.stores.metrics.victoria import VictoriaEngine

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from ccagent.stores.metrics.settings import StoreSettings


class GatewayServer(ListeningServer):
    """A server without values. Several gateways can share one engine.

    With a directory `data` each gateway has a separate table of jobs.
    """

    def __init__(self, settings: StoreSettings) -> None:
        """Open the table of jobs. Raise ConfigurationError, LockedError, OSError."""
        super().__init__(settings)
        engine = VictoriaEngine(settings.engine_url)
        names = MetricStore(settings.catalogue(), time.time)
        source = EngineSource(engine, names, settings.limits.values)
        self._lock: Lock | None = None
        self._jobs = self._events = self._footprints = None
        if settings.data:
            make_directory(settings.data)
            self._lock = Lock(os.path.join(settings.data, "lock"), "data")
            self._jobs = open_jobs(
                os.path.join(settings.data, "jobs.sqlite"),
                survives_power_failure=settings.sync == "disk",
            )
            self._events = JobEvents(self._jobs)
            since = int(time.time() - settings.retention.seconds)
            self._events.ended += find_ended_jobs(self._jobs, since)
            self._footprints = FootprintKeeper(
                names, self._jobs, self._events.ended, source.read_job
            )
        self.commit = EngineCommit(engine)
        memory = plan_memory(settings.memory_cap)
        self.ingest = EngineIngest(
            names,
            self.commit,
            future=int(settings.limits.future.seconds),
            past=settings.oldest(),
            is_strict=settings.is_reference,
            series=SeriesLimits(
                names,
                most=settings.limits.series,
                of_node=settings.limits.new_series,
                of_sender=memory.series_of_sender,
                retention=settings.retention.seconds,
                memory=memory.process,
            ),
            others=self._events.take if self._events else None,
            # Names of ended jobs are kept, so the number of parts of a node only grows.
            parts=PartLimits(names, of_node=settings.limits.series),
        )
        key = settings.jwt_public_key
        self.api = GatewayApi(
            names,
            self.ingest,
            self.commit,
            verifier=TokenVerifier(key, time.time, frozenset(settings.web.staff)) if key else None,
            limits=QueryLimits(settings.limits.values, is_strict=settings.is_reference),
            largest_body=parse_size(settings.limits.body),
            bodies=parse_size(settings.limits.bodies),
            describe=lambda: describe_gateway(names, self.ingest, self.commit, self.connections),
            jobs=self._jobs,
            events=self._events,
            source=source,
        )
        self._receiver = self.make_receiver(self.ingest, self.commit)

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return additional coroutines to run."""
        return [] if self._receiver is None else [self._receiver.run()]

    async def tick(self) -> None:
        """Store footprints of ended jobs."""
        if self._footprints is None or self._events is None or not self._events.retry():
            return
        try:
            await self._footprints.keep()
        except (sqlite3.Error, CcagentError) as error:
            logger.error("footprints of jobs: %s; retrying", error)

    async def end(self) -> None:
        """Wait for the engine, and close the table of jobs."""
        await self.commit.close()
        if self._events is not None:
            self._events.close()
        if self._jobs is not None:
            self._jobs.close()
        if self._lock is not None:
            self._lock.release()
