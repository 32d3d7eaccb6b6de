"""Responses with static files: styles, scripts, pictures, and Bokeh's files."""

from __future__ import annotations

import gzip
from functools import lru_cache
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response

from ccagent.views.web.rendering import (
    BOKEH,
    bokeh_folder,
    bokeh_version,
    static_files,
    static_version,
)

if TYPE_CHECKING:
    from starlette.requests import Request

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
