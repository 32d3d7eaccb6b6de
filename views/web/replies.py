"""Responses of the pages' server: headers, ETags, compression, cached pages, static files."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import math
import re
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ccagent.views.web.rendering import (
    BOKEH,
    bokeh_folder,
    bokeh_version,
    static_files,
    static_version,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
ZOOM_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
"""The policy of pages with Bokeh, which creates style elements. Inline scripts stay forbidden."""

_FIXED = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


class GuardedApplication:
    """ASGI middleware that adds security headers, checks the host name and handles errors.

    hosts: names of this server; empty: any. fail: builds the response to an unforeseen error.
    """

    def __init__(
        self, app: ASGIApp, hosts: tuple[str, ...], fail: Callable[[Request, Exception], Response]
    ) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._fail = fail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. Raise unforeseen errors only after the start of the response."""
        if scope["type"] != "http":
            return
        scope["app"] = self  # Starlette then raises errors, and `fail` builds their pages
        is_begun = False

        async def send_more(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                message["headers"] = _complete(message["headers"])
            await send(message)

        if self._hosts and _host(scope) not in self._hosts:
            # DNS rebinding: with a foreign name another site could read open pages.
            answer = Response("unknown host name\n", 400, media_type="text/plain")
            await answer(scope, receive, send_more)
            return
        try:
            # Sums of implausible values are infinite; pages show them as unknown.
            with np.errstate(over="ignore", invalid="ignore"):
                await self._app(scope, receive, send_more)
        except Exception as error:
            if is_begun:
                raise
            await self._fail(Request(scope), error)(scope, receive, send_more)


def _complete(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    found = list(headers)
    given = {name for name, _ in found}
    found += [(name, value) for name, value in _FIXED.items() if name not in given]
    return found


def _host(scope: Scope) -> str:
    """Return the name in the header Host, without port."""
    text = next((value for name, value in scope["headers"] if name == b"host"), b"")
    host: str = text.decode("latin-1").lower()
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def reply(request: Request, page: MadePage, more: Mapping[str, str] | None = None) -> Response:
    """Return the response with a page; status 304 if the browser has the current version."""
    headers = {
        "ETag": f'"{page.tag}"',
        "Cache-Control": "private, no-cache",
        "Vary": "Cookie, Authorization, Accept-Encoding",
        **(more or {}),
    }
    known = [
        one.strip().removeprefix("W/")
        for one in request.headers.get("if-none-match", "").split(",")
    ]
    if headers["ETag"] in known:
        return Response(status_code=304, headers=headers)
    body = page.body
    if page.packed and "gzip" in request.headers.get("accept-encoding", ""):
        body = page.packed
        headers["Content-Encoding"] = "gzip"
    return Response(body, 200, headers, media_type=page.kind)


T = TypeVar("T")

SECONDS = 25.0
_SHORTEST = 9.0
_MAX_AGE = re.compile(r"max-age=(\d{1,6})")


def read_age(request: Request) -> float:
    """Return the maximum age of a page in s that a browser asks for; at least 9 s."""
    found = _MAX_AGE.fullmatch(request.headers.get("cache-control", ""))
    # Browsers send `max-age=0` when a person reloads a page.
    return max(_SHORTEST, float(found[1])) if found and found[1] != "0" else SECONDS


_FEWEST_TO_PACK = 1024


class MadePage(NamedTuple):
    """A page: media type, plain and compressed body, ETag."""

    kind: str
    body: bytes
    packed: bytes
    tag: str

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return len(self.body) + len(self.packed)


def pack_page(kind: str, body: bytes) -> MadePage:
    """Return a page with its compressed body."""
    packed = gzip.compress(body, 6, mtime=0) if len(body) >= _FEWEST_TO_PACK else b""
    return MadePage(kind, body, packed, hashlib.blake2b(body, digest_size=12).hexdigest())


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

    async def get(
        self, key: Hashable, make: Callable[[], Awaitable[T]], age: float = math.inf
    ) -> T:
        """Return the entry of a key, else the result of `make`. Raise the errors of `make`.

        age: maximum age of the entry in s, if it is shorter than the time to live.
        """
        found = self._kept.get(key)
        if found is not None and self._clock() < found[0] - max(0.0, self._seconds - age):
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


_FOR_EVER = "public, max-age=31536000, immutable"
"""Caching without limit: addresses of static files contain a version."""

_KINDS = {
    "css": "text/css; charset=utf-8", "svg": "image/svg+xml",
    "js": "text/javascript; charset=utf-8",
}  # fmt: skip
_MOST_PACKED = 64


async def answer_static(request: Request) -> Response:
    """Return a file of the package. Raise HTTPException (404) if it does not exist."""
    name = request.path_params["name"]
    body = static_files().get(name)
    if body is None or request.path_params["version"] != static_version():
        raise HTTPException(404, "no such file")
    return _answer(request, body, _KINDS[name.rpartition(".")[2]])


async def answer_bokeh(request: Request) -> Response:
    """Return a file of the installed Bokeh. Raise HTTPException (404) if it does not exist."""
    folder, name = bokeh_folder(), request.path_params["name"]
    if folder is None or name not in BOKEH or request.path_params["version"] != bokeh_version():
        raise HTTPException(404, "no such file")
    return _answer(request, (folder / name).read_bytes(), _KINDS["js"])


def _answer(request: Request, body: bytes, kind: str) -> Response:
    headers = {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        body = _pack(body)
        headers["Content-Encoding"] = "gzip"
    return Response(body, 200, headers, media_type=kind)


@lru_cache(maxsize=_MOST_PACKED)
def _pack(body: bytes) -> bytes:
    return gzip.compress(body, 9, mtime=0)
