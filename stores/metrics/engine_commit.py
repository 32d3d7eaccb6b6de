"""Imports of values into an engine. One import runs at a time, for all messages that wait."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.stores.metrics.log_writer import StoreLogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.stores.metrics.victoria import VictoriaEngine

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
        self._waiting: list[Callable[[StoreLogError | None], None]] = []
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

    def wait(self, done: Callable[[StoreLogError | None], None]) -> None:
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

    def _take(self) -> tuple[list[bytes], list[bytes], list[Callable[..., None]]]:
        found = self._texts, self._lines, self._waiting
        self._texts, self._lines, self._waiting, self._size = [], [], [], 0
        return found

    def _answer(self, waiting: list[Callable[..., None]], problem: StoreLogError | None) -> None:
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
