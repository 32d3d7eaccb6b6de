"""Answers of the pages' server: what every one of them forbids, tags, packed bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ccagent.views.web.page_cache import MadePage

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
ZOOM_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
"""Of pages on which Bokeh draws: it makes style elements. Scripts stay those of files."""

_FIXED = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}


class FixedHeaders:
    """Adds the headers that every answer has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((name, value) for name, value in _FIXED.items() if name not in given),
                ]
                if b"cache-control" not in given:
                    message["headers"].append((b"cache-control", b"no-store"))
            await send(message)

        await self._app(scope, receive, send_more)


def reply(request: Request, page: MadePage, more: Mapping[str, str] | None = None) -> Response:
    """Return a made page, 304 if the browser has it."""
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
