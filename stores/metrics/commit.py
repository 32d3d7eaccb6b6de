"""Group commit: many messages share one write of the log, and are acknowledged afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal, Protocol

from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.stores.metrics.log_writer import StoreLogError

if TYPE_CHECKING:
    from ccagent.stores.metrics.log_writer import WriteAheadLog
    from ccagent.stores.metrics.victoria import VictoriaEngine


Committed = Callable[[StoreLogError | None], None]
"""Called after values are stored, or with the error."""

SyncMode = Literal["write", "disk"]
"""`write`: acknowledged values survive kill -9. `disk`: they survive a power failure."""

_SYNC_EVERY = 0.05


class MessageCommit(Protocol):
    """Calls back when added values are stored, or storing failed."""

    def wait(self, done: Committed) -> None:
        """Call `done` after everything added until now is stored, or with the error."""

    def flush(self) -> None:
        """Write the added values."""


class GroupCommit:
    """Calls back senders after their values are in the log.

    All messages of one turn of the event loop share one write. A thread syncs the log every 50 ms;
    with `disk`, as soon as a message waits.
    """

    def __init__(self, log: WriteAheadLog | None, mode: SyncMode) -> None:
        self._log = log
        self._mode = mode
        self._waiting: list[Committed] = []
        self._written: list[Committed] = []
        self._is_scheduled = False
        self._syncing: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._unkept = 0
        """Number of messages that are only in memory because writing the log failed."""

    def wait(self, done: Committed) -> None:
        """Call `done` after everything added until now is in the log, or with the error."""
        self._waiting.append(done)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write the added records."""
        self._is_scheduled = False
        waiting, self._waiting = self._waiting, []
        problem: StoreLogError | None = None
        if self._log is not None:
            try:
                self._log.flush()
            except StoreLogError as error:
                if not self._unkept:
                    logger.error(
                        "log: %s; new values are only in memory, and senders get an error", error
                    )
                self._unkept += max(1, len(waiting))
                problem = error
            else:
                self._report_recovery(len(waiting))
        if problem is None and self._mode == "disk" and self._log is not None:
            self._written += waiting
            self._start_sync()
            return
        for done in waiting:
            done(problem)
        if self._log is not None and self._log.is_dirty and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_SYNC_EVERY, self._start_sync)

    def _report_recovery(self, messages: int) -> None:
        """Log that writing the log works again, after failed writes."""
        if self._unkept and messages:
            logger.warning(
                "log: written again; %d messages are only in memory; their senders got an error",
                self._unkept,
            )
            self._unkept = 0

    def _start_sync(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._log is None or self._syncing is not None or self._is_closed:
            return
        written, self._written = self._written, []
        loop = asyncio.get_running_loop()
        self._syncing = loop.run_in_executor(None, self._log.sync)
        self._syncing.add_done_callback(lambda future: self._synced(future, written))

    def _synced(
        self,
        future: asyncio.Future[None],
        written: list[Committed],
    ) -> None:
        self._syncing = None
        problem: StoreLogError | None = None
        if not future.cancelled():
            error = future.exception()
            if error is not None:
                problem = error if isinstance(error, StoreLogError) else StoreLogError(str(error))
                logger.error("log: sync failed: %s; a power failure would lose values", problem)
        for done in written:
            done(problem)
        if self._written:
            self._start_sync()

    async def close(self) -> None:
        """Write and sync the remaining records."""
        self.flush()
        while self._syncing is not None:
            await asyncio.wait([self._syncing])
            await asyncio.sleep(0)
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()


_MOST_BYTES = 256 << 20
"""Maximum size in bytes of values waiting for the engine."""


class EngineCommit:
    """Calls back senders after the engine has stored their values, or refused them."""

    def __init__(self, engine: VictoriaEngine) -> None:
        self.failures = 0
        self._engine = engine
        self._texts: list[bytes] = []
        self._lines: list[bytes] = []
        self._size = 0
        self._waiting: list[Committed] = []
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        # A dedicated thread: queries waiting for the engine can block all threads of the event
        # loop.
        self._thread = ThreadPoolExecutor(1, "engine")

    def add(self, text: bytes) -> None:
        """Add values in Prometheus' text format."""
        self._texts.append(text)
        self._size += len(text)

    def add_json(self, line: bytes) -> None:
        """Add values in the engine's JSON lines, for names that the text format does not permit."""
        self._lines.append(line)
        self._size += len(line)

    def wait(self, done: Committed) -> None:
        """Call `done` after everything added until now is in the engine, or with the error."""
        self._waiting.append(done)
        self.flush()

    def flush(self) -> None:
        """Start an import, unless one is running."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._import())
        elif self._size > _MOST_BYTES:
            self._answer(self._take()[2], StoreLogError("too many values wait for the engine"))

    async def close(self) -> None:
        """Wait for the last import."""
        while self._task is not None:
            await asyncio.wait([self._task])
            await asyncio.sleep(0)
        self._thread.shutdown(wait=False)

    async def _import(self) -> None:
        await asyncio.sleep(0)  # all messages of this turn of the event loop share one import
        try:
            while self._waiting or self._size:
                texts, lines, waiting = self._take()
                problem: StoreLogError | None = None
                try:
                    await asyncio.get_running_loop().run_in_executor(
                        self._thread, self._write, texts, lines
                    )
                except (CcagentError, OSError, ValueError) as error:
                    problem = StoreLogError(f"the engine does not answer: {error}")
                except Exception as error:  # noqa: BLE001 - those who wait must get an answer
                    logger.exception("engine: an import failed")
                    problem = StoreLogError(f"the engine does not answer: {error}")
                self._report(problem)
                self._answer(waiting, problem)
        finally:
            self._task = None

    def _write(self, texts: list[bytes], lines: list[bytes]) -> None:
        if texts:
            self._engine.import_text(b"".join(texts))
        if lines:
            self._engine.import_lines(b"\n".join(lines))

    def _take(self) -> tuple[list[bytes], list[bytes], list[Committed]]:
        found = self._texts, self._lines, self._waiting
        self._texts, self._lines, self._waiting, self._size = [], [], [], 0
        return found

    def _answer(self, waiting: list[Committed], problem: StoreLogError | None) -> None:
        for done in waiting:
            done(problem)

    def _report(self, problem: StoreLogError | None) -> None:
        """Log the first failure, and the recovery."""
        if problem is not None:
            self.failures += 1
            if not self._is_failing:
                logger.error("engine: %s; senders get an error and send again", problem)
        elif self._is_failing:
            logger.warning("engine: imports succeed again")
        self._is_failing = problem is not None
