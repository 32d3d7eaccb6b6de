"""A cache of pages with a time to live, which limits their cost for any number of viewers."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

T = TypeVar("T")

SECONDS = 25.0
_FEWEST_TO_PACK = 1024


class MadePage(NamedTuple):
    """A page: status, media type, plain and compressed body, ETag."""

    status: int
    kind: str
    body: bytes
    packed: bytes
    tag: str

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return len(self.body) + len(self.packed)


def pack_page(status: int, kind: str, body: bytes) -> MadePage:
    """Return a page with its compressed body."""
    packed = gzip.compress(body, 4, mtime=0) if len(body) >= _FEWEST_TO_PACK else b""
    return MadePage(status, kind, body, packed, hashlib.blake2b(body, digest_size=12).hexdigest())


class TimedCache(Generic[T]):
    """A cache with a time to live. Concurrent requests of a key share one computation.

    most: maximum of the sum of sizes; the oldest entries are evicted first.
    """

    def __init__(
        self,
        most: int,
        size: Callable[[T], int],
        *,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._size_of = size
        self._seconds = seconds
        self._clock = clock
        self._kept: dict[Hashable, tuple[float, T]] = {}
        self._making: dict[Hashable, asyncio.Task[T]] = {}
        self._size = 0
        self.made = 0
        """Number of computed entries."""

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the entry of a key, else the result of `make`. Raise the errors of `make`."""
        found = self._kept.get(key)
        if found is not None and self._clock() < found[0]:
            return found[1]
        task = self._making.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._make(key, make))
            self._making[key] = task
            task.add_done_callback(lambda _: self._making.pop(key, None))
        # A closed connection must not cancel the computation for other viewers.
        return await asyncio.shield(task)

    async def _make(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        thing = await make()
        self.made += 1
        now = self._clock()
        for old in [one for one, (until, _) in self._kept.items() if until <= now]:
            self._drop(old)
        self._drop(key)
        self._kept[key] = (now + self._seconds, thing)
        self._size += self._size_of(thing)
        while self._size > self._most and self._kept:
            self._drop(next(iter(self._kept)))
        return thing

    def _drop(self, key: Hashable) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._size -= self._size_of(found[1])
