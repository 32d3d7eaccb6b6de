"""Group commit: many messages are written to the log at once, and acknowledged after that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, Protocol

from ccagent.log import logger
from ccagent.stores.metrics.log_writer import StoreLogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.stores.metrics.log_writer import WriteAheadLog

SyncMode = Literal["write", "disk"]
"""`write`: acknowledged values survive kill -9. `disk`: they survive a power failure."""

_SYNC_EVERY = 0.05


class MessageCommit(Protocol):
    """Calls back when what was added is kept, or can't be."""

    def wait(self, done: Callable[[StoreLogError | None], None]) -> None:
        """Call `done` when everything that was added until now is kept, or can't be."""

    def flush(self) -> None:
        """Write what was added."""


class GroupCommit:
    """Calls back those who wait for what they added to the log.

    All who come in one turn of the event loop share one write. The log is synced in a thread, each
    50 ms, or with `disk` as soon as somebody waits.
    """

    def __init__(self, log: WriteAheadLog | None, mode: SyncMode) -> None:
        self._log = log
        self._mode = mode
        self._waiting: list[Callable[[StoreLogError | None], None]] = []
        self._written: list[Callable[[StoreLogError | None], None]] = []
        self._is_scheduled = False
        self._syncing: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._unkept = 0
        """Messages that are in memory only, since the log could not be written."""

    def wait(self, done: Callable[[StoreLogError | None], None]) -> None:
        """Call `done` when everything that was added until now is kept, or can't be."""
        self._waiting.append(done)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what was added."""
        self._is_scheduled = False
        waiting, self._waiting = self._waiting, []
        problem: StoreLogError | None = None
        if self._log is not None:
            try:
                self._log.flush()
            except StoreLogError as error:
                if not self._unkept:
                    logger.error("log: %s; values are kept in memory only", error)
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
        if self._log is not None and self._log.is_dirty() and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_SYNC_EVERY, self._start_sync)

    def _report_recovery(self, messages: int) -> None:
        """Log that the log can be written again, after messages that it could not take."""
        if self._unkept and messages:
            logger.warning(
                "log: written again; %d messages before are in memory only, and their senders know",
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
        written: list[Callable[[StoreLogError | None], None]],
    ) -> None:
        self._syncing = None
        problem: StoreLogError | None = None
        if not future.cancelled():
            error = future.exception()
            if error is not None:
                problem = error if isinstance(error, StoreLogError) else StoreLogError(str(error))
                logger.error("log: %s; a power failure would lose values", problem)
        for done in written:
            done(problem)
        if self._written:
            self._start_sync()

    async def close(self) -> None:
        """Write and sync what is left."""
        self.flush()
        while self._syncing is not None:
            await asyncio.wait([self._syncing])
            await asyncio.sleep(0)
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
