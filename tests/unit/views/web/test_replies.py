"""Pages are made once, for however many people."""

from __future__ import annotations

import asyncio

import pytest

from ccagent.views.web.replies import TimedCache, pack_page


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def make_cache(most: int = 100) -> tuple[TimedCache[str], Clock]:
    clock = Clock()
    return TimedCache(most, len, seconds=15, clock=clock), clock


def test_what_many_ask_for_at_once_is_made_once() -> None:
    async def main() -> None:
        cache, _ = make_cache()

        async def make() -> str:
            await asyncio.sleep(0)
            return "page"

        assert await asyncio.gather(*(cache.get("a", make) for _ in range(10))) == ["page"] * 10
        assert cache.made == 1

    asyncio.run(main())


def test_a_page_is_made_again_when_it_is_old() -> None:
    async def main() -> None:
        cache, clock = make_cache()

        async def make() -> str:
            return str(clock.time)

        assert await cache.get("a", make) == "0.0"
        clock.time = 14.0
        assert await cache.get("a", make) == "0.0"
        clock.time = 16.0
        assert await cache.get("a", make) == "16.0"

    asyncio.run(main())


def test_an_error_is_raised_and_not_kept() -> None:
    async def main() -> None:
        cache, _ = make_cache()

        async def fail() -> str:
            raise ValueError("no page")

        async def make() -> str:
            return "page"

        with pytest.raises(ValueError, match="no page"):
            await cache.get("a", fail)
        assert await cache.get("a", make) == "page"

    asyncio.run(main())


def test_a_viewer_who_leaves_takes_nothing_from_others() -> None:
    async def main() -> None:
        cache, _ = make_cache()
        begun = asyncio.Event()

        async def make() -> str:
            begun.set()
            await asyncio.sleep(0.01)
            return "page"

        first = asyncio.create_task(cache.get("a", make))
        await begun.wait()
        second = asyncio.create_task(cache.get("a", make))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "page"

    asyncio.run(main())


def test_what_is_kept_is_bounded() -> None:
    async def main() -> None:
        cache, _ = make_cache(most=10)

        async def make() -> str:
            return "12345"

        for key in range(20):
            await cache.get(key, make)
        assert cache.made == 20
        await cache.get(19, make)
        assert cache.made == 20
        await cache.get(0, make)
        assert cache.made == 21

    asyncio.run(main())


def test_equal_pages_have_equal_tags() -> None:
    one, two = (pack_page("text/html", b"x" * 2000) for _ in range(2))
    assert one == two
    assert len(one.packed) < len(one.body)
    assert pack_page("text/html", b"y").tag != one.tag
