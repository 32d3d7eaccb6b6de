"""The store process: its parts, interfaces, start and end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING

import numpy as np

from ccagent.config.duration import parse_size
from ccagent.log import logger
from ccagent.registry import store_with_pages_class
from ccagent.service.instance import Lock
from ccagent.service.private_directories import make_directory
from ccagent.stores.metrics.api import StoreApi
from ccagent.stores.metrics.checkpoints import Checkpointer, read_checkpoints
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.housekeeping import REPLAYED, Housekeeper, find_used_nodes
from ccagent.stores.metrics.ingest import LineIngest
from ccagent.stores.metrics.job_events import JobEvents
from ccagent.stores.metrics.job_queries import FootprintKeeper
from ccagent.stores.metrics.job_table import JOBS_KEPT, TABLE_ERRORS, find_ended_jobs
from ccagent.stores.metrics.listening import ListeningServer, open_jobs
from ccagent.stores.metrics.log_replay import Replay
from ccagent.stores.metrics.log_writer import StoreLogError, WriteAheadLog, largest_segment
from ccagent.stores.metrics.own_metrics import StoreParts, describe_store
from ccagent.stores.metrics.query_answers import ArchiveQueries
from ccagent.stores.metrics.settings import log_directory
from ccagent.stores.metrics.store import MetricStore
from ccagent.stores.metrics.usage.keeper import UsageKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ccagent.stores.metrics.settings import StoreSettings

_LIMIT_DISK_EVERY = 5.0


class StoreServer(ListeningServer):
    """A store in memory with a log and an HTTP interface."""

    def __init__(
        self,
        settings: StoreSettings,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Read the stored data. Raise ConfigurationError, LockedError, OSError."""
        super().__init__(settings, now)
        self.store = MetricStore(settings.catalogue(), now)
        directory = log_directory(settings)
        make_directory(settings.data)
        make_directory(directory)
        self._lock = Lock(os.path.join(settings.data, "lock"), "data")
        retention = int(settings.retention.seconds)
        begin = time.monotonic()
        self.checkpointer = self._read_checkpoints(retention)
        replay = Replay(self.store)
        oldest = int(now()) - REPLAYED * retention
        closed = replay.read_directory(directory, oldest)
        logger.info(
            "read %d values of %d series in %.1f s",
            replay.points, self.store.series, time.monotonic() - begin,
        )  # fmt: skip
        changed = self.store.changed_steps.describe()
        if changed:
            logger.warning("%s", changed)
        disk_cap = parse_size(settings.disk_cap)
        self.log = WriteAheadLog(directory, largest=largest_segment(disk_cap))
        self.log.closed += closed
        self.housekeeper = Housekeeper(
            self.store,
            self.log,
            retention=retention,
            memory_cap=self.memory.values,
            disk_cap=disk_cap,
            archive=settings.archive.directory,
        )
        self.commit = GroupCommit(self.log, settings.sync)
        self._jobs = open_jobs(settings)
        self.events = JobEvents(self._jobs)
        self.events.ended += find_ended_jobs(self._jobs, int(now()) - retention)
        self.usage = UsageKeeper(settings.usage, settings.data)
        self._footprints = FootprintKeeper(
            self.store, self._jobs, self.events.ended, usage=self.usage
        )
        self.ingest = LineIngest(
            self.store,
            self.log,
            future=int(settings.limits.future.seconds),
            past=settings.oldest(),
            is_strict=settings.is_reference,
            series=self.limit_series(self.store),
            others=self.events.take,
        )
        parts = StoreParts(self.store, self.ingest, self.housekeeper, self.connections, self.log)
        self.api = StoreApi(
            self.store,
            self.ingest,
            self.commit,
            log=self.log,
            verifier=self.verifier,
            limits=self.query_limits,
            largest_body=parse_size(settings.limits.body),
            bodies=parse_size(settings.limits.bodies),
            describe=lambda: describe_store(parts),
            jobs=self._jobs,
            events=self.events,
            source=self._make_archive(),
            usage=self.usage,
        )
        self.subscribe(self.ingest, self.commit)

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return additional coroutines to run."""
        found: list[Coroutine[Any, Any, None]] = [
            self.repeat(self.retention_period(), self._retain),
            # Archiving takes long, so it has a separate task.
            self.repeat(_LIMIT_DISK_EVERY, self.housekeeper.limit_disk),
        ]
        if self.checkpointer is not None:
            seconds = self.settings.checkpoints.interval.seconds
            found.append(self.repeat(seconds, self.checkpointer.write))
        if self.settings.usage.source or self.settings.usage.factor_file:
            found.append(self._refresh_usage())
        return found

    async def end(self) -> None:
        """Store the remaining data."""
        await self.commit.close()
        try:
            self.log.close()
        except StoreLogError as error:
            logger.error("log: %s; the last values are lost", error)
        if self.checkpointer is not None:
            self.checkpointer.write_at_once()
        self.events.close()
        self._jobs.close()
        self.usage.close()
        self._lock.release()

    async def tick(self) -> None:
        """Store footprints of ended jobs, and apply the memory cap."""
        self.housekeeper.check_log()
        self.housekeeper.limit_memory()
        await self.keep_footprints(self.events, self._footprints)

    async def _retain(self) -> None:
        """Apply the retention, every half retention but at least hourly."""
        now = int(self.store.now())
        limit = now - int(self.settings.retention.seconds)
        spared = await asyncio.to_thread(find_used_nodes, self.settings.backend_url, limit)
        if spared is not None:
            self.housekeeper.retain(spared)
        await self.housekeeper.remove_old(is_spared=spared is None or bool(spared))
        if self.checkpointer is not None:
            await asyncio.to_thread(self.checkpointer.remove_old)
        try:
            await self._jobs.remove_before(now - JOBS_KEPT)
            self.usage.table.remove_before(now - JOBS_KEPT)
        except TABLE_ERRORS as error:
            logger.error("table of jobs: %s; old jobs are removed later", error)

    async def _refresh_usage(self) -> None:
        """Refresh the factors of emissions, now and then."""
        await self.usage.refresh()
        await self.repeat(self.settings.usage.every.seconds, self.usage.refresh)

    def _make_archive(self) -> ArchiveQueries | None:
        """Return the archive's value source; None without an archive."""
        directory = self.settings.archive.directory
        if not directory:
            return None
        retention = int(self.settings.retention.seconds)
        return ArchiveQueries(self.store, directory, retention, self.settings.limits.values)

    def _read_checkpoints(self, retention: int) -> Checkpointer | None:
        """Read the checkpoints. Return their writer; None if none are written."""
        chosen = self.settings.checkpoints
        if not chosen.directory:
            return None
        oldest = int(self.store.now()) - retention
        ends: dict[tuple[str, str], int] = {}
        count = read_checkpoints(self.store, chosen.directory, oldest, ends)
        logger.info("read %d values of checkpoints in %s", count, chosen.directory)
        if chosen.format == "none":
            return None
        state = os.path.join(self.settings.data, "checkpointed.json")
        return Checkpointer(
            self.store, chosen.directory, chosen.format, retention=retention, state=state, ends=ends
        )


def run_store(settings: StoreSettings) -> None:
    """Run a store until SIGTERM. Raise ConfigurationError, LockedError, OSError."""

    async def main() -> None:
        if settings.engine == "memory":
            has_pages = bool(settings.web.listen)
            server: type[StoreServer] = store_with_pages_class() if has_pages else StoreServer
            await server(settings).run()
        else:
            from ccagent.stores.metrics.gateway import GatewayServer

            await GatewayServer(settings).run()

    # Sums of huge values are infinite. Responses contain them as missing.
    np.seterr(over="ignore", invalid="ignore")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
