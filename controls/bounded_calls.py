"""Calls with a time limit for the event loop, in threads that are abandoned after it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, TypeVar

from ccagent.log import logger
from ccagent.machine.background import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_MOST_HANGING = 16


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


def end_process(reason: str) -> None:
    """End the process at once: threads that hang would stop an ordinary exit."""
    logger.error("controls: %s: the service ends, to be started again", reason)
    os._exit(1)
