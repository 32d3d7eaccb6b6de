"""Base class of the store's and the gateway's server process."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from typing import TYPE_CHECKING

from ccagent.config.duration import parse_size
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import logger, say
from ccagent.net.urls import describe_address
from ccagent.service.instance import Notifier
from ccagent.stores.accepting import handle_accept_errors, plan_connections
from ccagent.stores.collecting import shorten_collections
from ccagent.stores.metrics.checking import make_tls_context
from ccagent.stores.metrics.connection import StoreConnection
from ccagent.stores.metrics.job_table import open_job_table
from ccagent.stores.metrics.query import QueryLimits
from ccagent.stores.metrics.request_reader import ConnectionLimits
from ccagent.stores.metrics.series_limits import SeriesLimits, plan_memory
from ccagent.stores.metrics.settings import split_address
from ccagent.stores.metrics.tokens import TokenVerifier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from ccagent.stores.metrics.api import StoreApi
    from ccagent.stores.metrics.commit import MessageCommit
    from ccagent.stores.metrics.ingest import LineIngest
    from ccagent.stores.metrics.job_events import JobEvents
    from ccagent.stores.metrics.job_queries import FootprintKeeper
    from ccagent.stores.metrics.job_table import JobTable
    from ccagent.stores.metrics.nats_receiver import NatsReceiver
    from ccagent.stores.metrics.settings import StoreSettings
    from ccagent.stores.metrics.store import MetricStore

_SWEEP_EVERY = 5.0
_BACKLOG = 4096
_OF_PAGES = 2560
"""Connections of the pages, with those that are accepted at once."""

_END_WITHIN = 10.0
_LONGEST_RETENTION_PERIOD = 3600.0


def open_jobs(settings: StoreSettings) -> JobTable:
    """Open the table of jobs: the shared one if it is configured. Raise ConfigurationError."""
    if settings.jobs_database:
        from ccagent.stores.metrics.shared_job_table import SharedJobTable

        return SharedJobTable(settings.jobs_database, settings.jobs_password_file)
    path = os.path.join(settings.data, "jobs.sqlite")
    try:
        return open_job_table(path, survives_power_failure=settings.sync == "disk")
    except sqlite3.Error as error:
        raise ConfigurationError(f"{path}: {error}; check the disk and the permissions") from error


class ListeningServer:
    """Serves an interface over HTTP. Subclasses set `api` and add work."""

    api: StoreApi

    def __init__(self, settings: StoreSettings, now: Callable[[], float] = time.time) -> None:
        """Set the limits and the key of tokens. Raise ConfigurationError."""
        self.settings = settings
        self.memory = plan_memory(settings.memory_cap)
        self.query_limits = QueryLimits(settings.limits.values, is_strict=settings.is_reference)
        key = settings.jwt_public_key
        self.verifier = TokenVerifier(key, now, frozenset(settings.web.staff)) if key else None
        self._receiver: NatsReceiver | None = None
        plan = plan_connections(
            settings.limits.connections, _BACKLOG, others=_OF_PAGES if settings.web.listen else 0
        )
        self._backlog = plan.backlog
        self.connections = ConnectionLimits(
            most=plan.most,
            bodies=parse_size(settings.limits.bodies),
            seconds=settings.limits.time.seconds,
        )
        self._stopping = asyncio.Event()
        self.port = 0

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raise ConfigurationError, OSError."""
        loop = asyncio.get_running_loop()
        handle_accept_errors(loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        notifier = Notifier()
        host, port = split_address(self.settings.listen)
        context = make_tls_context(self.settings)
        server = await loop.create_server(
            lambda: StoreConnection(self.api, self.connections),
            host or None,
            port,
            ssl=context,
            ssl_handshake_timeout=self.connections.seconds if context else None,
            backlog=self._backlog,
        )
        self.port = server.sockets[0].getsockname()[1]
        say(f"listening on {describe_address(host, self.port, is_tls=context is not None)}")
        shorten_collections()
        sweep = self.repeat(_SWEEP_EVERY, lambda: self._sweep(notifier))
        # A separate task: slow work must not delay the watchdog and the closing of slow
        # connections.
        tick = self.repeat(_SWEEP_EVERY, self.tick)
        work = self.work() if self._receiver is None else [*self.work(), self._receiver.run()]
        tasks = [loop.create_task(one) for one in (sweep, tick, *work)]
        notifier.ready(f"port {self.port}")
        await self._stopping.wait()
        notifier.stopping()
        server.close()
        for task in tasks:
            task.cancel()
        await self._answer_rest()
        # A cancelled checkpoint that ended later would damage the file of the last one.
        await asyncio.wait(tasks, timeout=_END_WITHIN)
        await self.end()

    def stop(self) -> None:
        """Stop the server, as SIGTERM does."""
        self._stopping.set()

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return additional coroutines to run."""
        return []

    def retention_period(self) -> float:
        """Return the seconds between two removals of what is too old."""
        return min(self.settings.retention.seconds / 2, _LONGEST_RETENTION_PERIOD)

    async def tick(self) -> None:
        """Do periodic work, every few seconds."""

    async def end(self) -> None:
        """Store the remaining data at the end."""

    @staticmethod
    async def repeat(seconds: float, action: Callable[[], Awaitable[None]]) -> None:
        """Call `action` every `seconds`. Log exceptions and continue."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await action()
            except Exception:  # noqa: BLE001 - what is done now and then must go on
                logger.exception("housekeeping failed")

    def limit_series(self, store: MetricStore) -> SeriesLimits:
        """Return the configured limits of new series."""
        settings = self.settings
        return SeriesLimits(
            store,
            most=settings.limits.series,
            of_node=settings.limits.new_series,
            of_sender=self.memory.series_of_sender,
            retention=settings.retention.seconds,
            memory=self.memory.process,
        )

    def subscribe(self, ingest: LineIngest, commit: MessageCommit) -> None:
        """Receive lines over NATS, if there are subscriptions. Raise ConfigurationError."""
        if self.settings.nats.subscriptions:
            # nats-py is imported only if it is used.
            from ccagent.stores.metrics.nats_receiver import NatsReceiver

            self._receiver = NatsReceiver(self.settings.nats, ingest, commit)

    @staticmethod
    async def keep_footprints(events: JobEvents, footprints: FootprintKeeper) -> None:
        """Write waiting events of jobs, then the footprints of ended jobs."""
        if not events.retry():
            return
        try:
            await footprints.keep()
        except (sqlite3.Error, CcagentError) as error:
            logger.error("footprints of jobs: %s; retrying", error)

    async def _sweep(self, notifier: Notifier) -> None:
        """Close slow connections, and notify the watchdog."""
        now = asyncio.get_running_loop().time()
        for one in list(self.connections.open):
            one.check_time(now)
        notifier.alive()

    async def _answer_rest(self) -> None:
        """Wait for the responses to received requests, then close all connections."""
        deadline = time.monotonic() + _END_WITHIN
        while any(one.is_busy() for one in self.connections.open):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.01)
        for one in list(self.connections.open):
            one.close()
