"""The running store: its parts, its interfaces, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sqlite3
import ssl
import time
from typing import TYPE_CHECKING

from ccagent.daemon.notify import Notifier
from ccagent.errors import ConfigurationError
from ccagent.log import logger
from ccagent.machine.lock import Lock
from ccagent.stores.metrics.api import StoreApi
from ccagent.stores.metrics.archiving import archive_segment
from ccagent.stores.metrics.checkpoint_files import read_checkpoints
from ccagent.stores.metrics.checkpointing import Checkpointer
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.connection import ConnectionLimits, StoreConnection
from ccagent.stores.metrics.housekeeping import Housekeeper
from ccagent.stores.metrics.ingest import LineIngest
from ccagent.stores.metrics.job_queries import FootprintKeeper
from ccagent.stores.metrics.job_table import JobEvents, JobTable
from ccagent.stores.metrics.log_replay import Replay
from ccagent.stores.metrics.log_writer import StoreLogError, WriteAheadLog
from ccagent.stores.metrics.own_metrics import StoreParts, describe_store
from ccagent.stores.metrics.query import QueryLimits
from ccagent.stores.metrics.settings import log_directory, parse_size, split_address
from ccagent.stores.metrics.store import MetricStore
from ccagent.stores.metrics.tokens import TokenVerifier
from ccagent.stores.metrics.used_nodes import find_used_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.stores.metrics.nats_receiver import NatsReceiver
    from ccagent.stores.metrics.settings import StoreSettings

_SWEEP_EVERY = 5.0
_LONGEST_RETENTION_PERIOD = 3600.0
_BACKLOG = 4096
_END_WITHIN = 10.0


class StoreServer:
    """A store in memory with its log and its HTTP interface."""

    def __init__(self, settings: StoreSettings, now: Callable[[], float] = time.time) -> None:
        """Read what is kept. Raises ConfigurationError, LockedError, OSError."""
        self.settings = settings
        self.store = MetricStore(settings.catalogue(), now)
        directory = log_directory(settings)
        os.makedirs(directory, 0o750, exist_ok=True)
        self._lock = Lock(os.path.join(settings.data, "lock"), "data")
        retention = int(settings.retention.seconds)
        begin = time.monotonic()
        self.checkpointer = self._read_checkpoints(retention)
        replay = Replay(self.store)
        oldest = int(now()) - 2 * retention
        closed = replay.read_directory(directory, oldest)
        logger.info(
            "read %d values of %d series in %.1f s",
            replay.points, self.store.series, time.monotonic() - begin,
        )  # fmt: skip
        self.log = WriteAheadLog(directory)
        self.log.closed += closed
        self.housekeeper = Housekeeper(
            self.store,
            self.log,
            retention=retention,
            memory_cap=parse_size(settings.memory_cap),
            disk_cap=parse_size(settings.disk_cap),
        )
        self.commit = GroupCommit(self.log, settings.sync)
        self._jobs = JobTable(os.path.join(settings.data, "jobs.sqlite"))
        self.events = JobEvents(self._jobs)
        self._footprints = FootprintKeeper(self.store, self._jobs, self.events.ended)
        self.ingest = LineIngest(
            self.store,
            self.log,
            future=int(settings.limits.future.seconds),
            is_strict=settings.strict == "reference",
            most_series=settings.limits.series,
            others=self.events.take,
        )
        self.connections = ConnectionLimits(
            most=settings.limits.connections,
            bodies=parse_size(settings.limits.bodies),
            seconds=settings.limits.time.seconds,
        )
        parts = StoreParts(self.store, self.ingest, self.housekeeper, self.connections, self.log)
        key = settings.jwt_public_key
        self.api = StoreApi(
            self.store,
            self.ingest,
            self.commit,
            log=self.log,
            verifier=TokenVerifier(key, now) if key else None,
            limits=QueryLimits(settings.limits.values),
            largest_body=parse_size(settings.limits.body),
            describe=lambda: describe_store(parts),
            jobs=self._jobs,
            events=self.events,
        )
        self._receiver = _make_receiver(settings, self.ingest, self.commit)
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        notifier = Notifier()
        host, port = split_address(self.settings.listen)
        server = await loop.create_server(
            lambda: StoreConnection(self.api, self.connections),
            host or None,
            port,
            ssl=_tls(self.settings),
            backlog=_BACKLOG,
        )
        self.port = server.sockets[0].getsockname()[1]
        logger.info("listening on %s, port %d", host or "every address", self.port)
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)
        work = [self._sweep(notifier), self._retain(), self._write_checkpoints()]
        if self._receiver is not None:
            work.append(self._receiver.run())
        self._tasks = [loop.create_task(one) for one in work]
        notifier.ready(f"port {self.port}, {self.store.series} series")
        await self._stopping.wait()
        notifier.stopping()
        server.close()
        await self._end()

    def stop(self) -> None:
        """End, as with SIGTERM."""
        self._stopping.set()

    async def _end(self) -> None:
        """Answer what was asked, and keep what was written."""
        for task in self._tasks:
            task.cancel()
        deadline = time.monotonic() + _END_WITHIN
        while any(one.is_busy() for one in self.connections.open):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.01)
        for one in list(self.connections.open):
            one.close()
        await self.commit.close()
        try:
            self.log.close()
        except StoreLogError as error:
            logger.error("log: %s; the last values are lost", error)
        if self.checkpointer is not None:
            self.checkpointer.write_at_once()
        self._jobs.close()
        self._lock.release()

    async def _sweep(self, notifier: Notifier) -> None:
        """Close slow connections; keep within the caps."""
        while True:
            await asyncio.sleep(_SWEEP_EVERY)
            now = asyncio.get_running_loop().time()
            for one in list(self.connections.open):
                one.check_time(now)
            self._keep_footprints()
            self.housekeeper.limit_memory()
            self.housekeeper.limit_disk()
            notifier.alive()

    def _keep_footprints(self) -> None:
        try:
            self._footprints.keep()
        except sqlite3.Error as error:
            logger.error("table of jobs: %s", error)

    async def _retain(self) -> None:
        """Release what is too old, each half of the retention."""
        period = min(self.settings.retention.seconds / 2, _LONGEST_RETENTION_PERIOD)
        while True:
            await asyncio.sleep(period)
            spared = await asyncio.to_thread(find_used_nodes, self.settings.backend_url,
                                             int(self.store.now()))  # fmt: skip
            if spared is not None:
                self.housekeeper.retain(spared)
            for segment in self.housekeeper.old_segments():
                if await archive_segment(segment, self.settings.archive.directory):
                    self.housekeeper.remove_segment(segment)
            if self.checkpointer is not None:
                await asyncio.to_thread(self.checkpointer.remove_old)

    async def _write_checkpoints(self) -> None:
        while self.checkpointer is not None:
            await asyncio.sleep(self.settings.checkpoints.interval.seconds)
            await self.checkpointer.write()

    def _read_checkpoints(self, retention: int) -> Checkpointer | None:
        """Read the checkpoints, and return who writes them."""
        chosen = self.settings.checkpoints
        if not chosen.directory:
            return None
        oldest = int(self.store.now()) - retention
        count = read_checkpoints(self.store, chosen.directory, oldest)
        logger.info("read %d values of checkpoints in %s", count, chosen.directory)
        if chosen.format == "none":
            return None
        state = os.path.join(self.settings.data, "checkpointed.json")
        return Checkpointer(
            self.store, chosen.directory, chosen.format, retention=retention, state=state
        )


def run_store(settings: StoreSettings) -> None:
    """Run a store until it is told to end. Raises ConfigurationError, LockedError, OSError."""

    async def main() -> None:
        await StoreServer(settings).run()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())


def _make_receiver(
    settings: StoreSettings, ingest: LineIngest, commit: GroupCommit
) -> NatsReceiver | None:
    """Return who receives over NATS, if anything is subscribed. Raises ConfigurationError."""
    if not settings.nats.subscriptions:
        return None
    # nats-py is imported when it is used.
    from ccagent.stores.metrics.nats_receiver import NatsReceiver

    return NatsReceiver(settings.nats, ingest, commit)


def _tls(settings: StoreSettings) -> ssl.SSLContext | None:
    if not settings.tls.certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls.certificate, settings.tls.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"tls: {settings.tls.certificate}: {error}") from None
    return context
