"""Logging in with a token, and out; requests that another site may have sent are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

from starlette.responses import RedirectResponse, Response

from ccagent.stores.metrics.tokens import UnauthorizedError
from ccagent.views.web.access import COOKIE

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from ccagent.views.web.access import PageAccess

_LARGEST_FORM = 32 << 10
_SECONDS = 12 * 3600
_LONGEST_TOKEN = 3800
"""Browsers drop cookies above 4,096 bytes without a word."""


class Sessions:
    """Keeps a token in a cookie of the browser, and nothing here."""

    def __init__(self, access: PageAccess) -> None:
        self._access = access

    def has_session(self, request: Request) -> bool:
        """Return whether a person is logged in by a cookie."""
        return self._access.takes_tokens and COOKIE in request.cookies

    def ask_login(self, request: Request) -> Response:
        """Lead to the page where a person logs in, and back."""
        query = f"?{request.url.query}" if request.url.query else ""
        place = quote(f"{request.url.path}{query}"[:2000], safe="")
        return RedirectResponse(f"/login?next={place}", 302)

    async def log_in(self, request: Request, show: Callable[[str, str, int], Response]) -> Response:
        """Check a token and keep it in a cookie."""
        if not is_own_form(request):
            return show("", "this form was sent by another site", 403)
        form = await _read_form(request)
        token, place = form.get("token", "").strip(), self.next_page(form.get("next", ""))
        try:
            self._access.check_token(token)
        except UnauthorizedError as error:
            return show(place, str(error), 403)
        if len(token) > _LONGEST_TOKEN:
            text = f"the token has more than {_LONGEST_TOKEN} characters, which no browser keeps"
            return show(place, text, 403)
        answer = RedirectResponse(place, 303)
        # Not strict: a link in a mail to a job would ask for the token again. Requests that change
        # something are forms, whose origin is checked.
        answer.set_cookie(
            COOKIE, token, max_age=_SECONDS, httponly=True, samesite="lax",
            secure=self._access.is_encrypted(request),
        )  # fmt: skip
        return answer

    async def log_out(self, request: Request) -> Response:
        """Forget the token."""
        if not is_own_form(request):
            return Response("this form was sent by another site\n", 403, media_type="text/plain")
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(
            COOKIE, httponly=True, samesite="lax", secure=self._access.is_encrypted(request)
        )
        return answer

    @staticmethod
    def next_page(place: str) -> str:
        """Return where to go on: a page of this server, never another one."""
        is_own = place.startswith("/") and not place.startswith(("//", "/\\"))
        is_plain = place.isascii() and place.isprintable() and "\\" not in place
        return place if is_own and is_plain else "/"


def is_own_form(request: Request) -> bool:
    """Return whether a form was sent from a page of this server."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin", "")
    return bool(origin) and urlsplit(origin).netloc == request.headers.get("host", "")


async def _read_form(request: Request) -> dict[str, str]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_FORM:
            return {}
    try:
        found = parse_qs(body.decode("ascii", "replace"), max_num_fields=10)
    except ValueError:
        return {}
    return {name: values[0] for name, values in found.items()}
