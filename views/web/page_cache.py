"""Pages that were made lately: however many people look, a page is made once in a while."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

SECONDS = 15.0
_MOST_BYTES = 64 << 20
_FEWEST_TO_PACK = 1024


class MadePage(NamedTuple):
    """A body, packed and plain, and its tag."""

    status: int
    kind: str
    body: bytes
    packed: bytes
    tag: str


class PageCache:
    """Keeps pages for some seconds. What two people ask for at once is made once."""

    def __init__(self, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._pages: dict[Hashable, tuple[float, MadePage]] = {}
        self._making: dict[Hashable, asyncio.Task[MadePage]] = {}
        self._size = 0
        self.made = 0
        """Number of pages that were made."""

    async def get(
        self, key: Hashable, make: Callable[[], Awaitable[tuple[int, str, bytes]]]
    ) -> MadePage:
        """Return the page of a key, made by `make` if there is none. Raises what that raises."""
        now = self._clock()
        found = self._pages.get(key)
        if found is not None and now < found[0]:
            return found[1]
        task = self._making.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._make(key, make))
            self._making[key] = task
            task.add_done_callback(lambda _: self._making.pop(key, None))
        # A viewer who leaves must not take the page from the others.
        return await asyncio.shield(task)

    async def _make(
        self, key: Hashable, make: Callable[[], Awaitable[tuple[int, str, bytes]]]
    ) -> MadePage:
        status, kind, body = await make()
        self.made += 1
        packed = gzip.compress(body, 4, mtime=0) if len(body) >= _FEWEST_TO_PACK else b""
        tag = hashlib.blake2b(body, digest_size=12).hexdigest()
        page = MadePage(status, kind, body, packed, tag)
        if status == 200:
            self._keep(key, page)
        return page

    def _keep(self, key: Hashable, page: MadePage) -> None:
        now = self._clock()
        for old in [one for one, (until, _) in self._pages.items() if until <= now]:
            self._drop(old)
        self._drop(key)
        self._pages[key] = (now + self._seconds, page)
        self._size += len(page.body) + len(page.packed)
        while self._size > _MOST_BYTES and self._pages:
            self._drop(next(iter(self._pages)))

    def _drop(self, key: Hashable) -> None:
        found = self._pages.pop(key, None)
        if found is not None:
            self._size -= len(found[1].body) + len(found[1].packed)
