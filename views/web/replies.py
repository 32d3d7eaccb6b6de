"""Responses of the pages' server: security headers, ETags, compression."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ccagent.views.web.page_cache import MadePage

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
    if page.status == 200 and headers["ETag"] in known:
        return Response(status_code=304, headers=headers)
    body = page.body
    if page.packed and "gzip" in request.headers.get("accept-encoding", ""):
        body = page.packed
        headers["Content-Encoding"] = "gzip"
    return Response(body, page.status, headers, media_type=page.kind)
