"""Time limits for access to the machine: abandoned threads, and a watchdog that ends the process.

A read in the event loop costs less than its transfer to another thread, but a hanging one stops all
requests. Only the end of the process helps then: systemd starts the service again, and the journal
has all changes. Everything else runs in threads that are abandoned after a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from ccagent.errors import CcagentError, NotPermittedError
from ccagent.log import logger
from ccagent.machine.background import BackgroundCall
from ccagent.service.private_files import open_private, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_MOST_HANGING = 16
_HANGING = "hanging"
_LAST_WORDS = 3.0
"""Maximum seconds for the answer to a hanging read before the end."""
_LARGEST = 4096


class BoundedCalls:
    """Calls in separate threads, for the event loop. The process ends if many of them hang."""

    def __init__(self) -> None:
        self._hanging: list[BackgroundCall[Any]] = []

    async def call(self, function: Callable[[], T], seconds: float | None) -> T:
        """Return the result of a function, or raise its exception.

        Raise TimeoutError after the time limit, if there is one; the thread is abandoned.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, done)

        call = BackgroundCall(function, "controls", tell)
        await asyncio.wait({done}, timeout=seconds)
        if call.is_done:
            return call.result()
        self._hanging = [*(each for each in self._hanging if not each.is_done), call]
        if len(self._hanging) > _MOST_HANGING:
            end_process(f"{len(self._hanging)} requests hang")
        raise TimeoutError


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


class ReadWatchdog:
    """Watches the reads in the event loop, in a thread that sleeps while none arrive.

    on_hang: called for a read that exceeds `limit` seconds, before the end of the process.
    """

    def __init__(self, limit: float, on_hang: Callable[[], None]) -> None:
        self.limit = limit
        self._on_hang = on_hang
        self._since = 0.0
        self._begun = self._ended = 0
        self._is_needed = threading.Event()
        threading.Thread(target=self._watch, name="controls-watchdog", daemon=True).start()

    def begin(self) -> None:
        """Start to watch a read."""
        self._since = time.monotonic()
        self._begun += 1
        if not self._is_needed.is_set():
            self._is_needed.set()

    def end(self) -> None:
        """End the watch of the read."""
        self._ended = self._begun

    def _watch(self) -> None:
        while True:
            self._is_needed.wait()
            seen = -1
            while seen != self._begun or self._ended != self._begun:
                seen = self._begun
                wait = self.limit / 2
                if self._ended != seen:
                    wait = self._since + self.limit - time.monotonic()
                    if wait <= 0:
                        self._end(seen)
                time.sleep(max(wait, 0.001))
            self._is_needed.clear()
            if seen != self._begun:  # it has begun before the event was cleared
                self._is_needed.set()

    def _end(self, number: int) -> None:
        # The time of the read may have been that of an earlier one.
        if number == self._begun != self._ended:
            with contextlib.suppress(CcagentError):
                BackgroundCall(self._on_hang, "controls-hang").wait(_LAST_WORDS)
            end_process(f"a read has hung for {self.limit:g} s")


def end_process(reason: str) -> None:
    """End the process at once: threads that hang would stop an ordinary exit."""
    logger.error("controls: %s: the service ends, to be started again", reason)
    os._exit(1)


def save_hanging(directory: str, names: frozenset[str]) -> None:
    """Save controls with devices whose read hangs, for the next start. Errors are logged."""
    try:
        replace_file(os.path.join(directory, _HANGING), "\n".join(sorted(names)).encode())
    except (OSError, CcagentError) as error:
        logger.error("controls: %s: %s", _HANGING, error)


def take_hanging(directory: str) -> frozenset[str]:
    """Return what the last process has saved, and delete it: the next start tries again."""
    path = os.path.join(directory, _HANGING)
    try:
        with open(open_private(path, os.O_RDONLY), "rb") as file:
            content = file.read(_LARGEST)
        os.unlink(path)
    except (OSError, NotPermittedError):
        return frozenset()
    return frozenset(content.decode("utf-8", "replace").split("\n"))
