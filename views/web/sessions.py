"""Login with a token, and logout. Requests from other sites are refused."""

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
"""Browsers silently drop cookies above 4,096 bytes."""


class Sessions:
    """Sessions of browsers: the token is stored in a cookie, and not on the server."""

    def __init__(self, access: PageAccess) -> None:
        self._access = access

    def has_session(self, request: Request) -> bool:
        """Return whether the request has the session's cookie."""
        return self._access.takes_tokens and COOKIE in request.cookies

    def ask_login(self, request: Request) -> Response:
        """Redirect to the login page, with the address of the current page."""
        query = f"?{request.url.query}" if request.url.query else ""
        place = quote(f"{request.url.path}{query}"[:2000], safe="")
        return RedirectResponse(f"/login?next={place}", 302)

    async def log_in(self, request: Request, show: Callable[[str, str, int], Response]) -> Response:
        """Check a token and set the cookie. show: builds the login page for errors."""
        if not is_own_form(request):
            return show("", "this form was sent by another site", 403)
        form = await _read_form(request)
        token, place = form.get("token", "").strip(), self.next_page(form.get("next", ""))
        try:
            self._access.check_token(token)
        except UnauthorizedError as error:
            return show(place, str(error), 403)
        if len(token) > _LONGEST_TOKEN:
            text = f"the token has more than {_LONGEST_TOKEN} characters; browsers do not store it"
            return show(place, text, 403)
        answer = RedirectResponse(place, 303)
        # Not Strict: a link in a mail would then require a login. Requests with side effects are
        # forms with a checked origin.
        answer.set_cookie(
            COOKIE, token, max_age=_SECONDS, httponly=True, samesite="lax",
            secure=self._access.is_encrypted(request),
        )  # fmt: skip
        return answer

    async def log_out(self, request: Request) -> Response:
        """Delete the cookie."""
        if not is_own_form(request):
            return Response("this form was sent by another site\n", 403, media_type="text/plain")
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(
            COOKIE, httponly=True, samesite="lax", secure=self._access.is_encrypted(request)
        )
        return answer

    @staticmethod
    def next_page(place: str) -> str:
        """Return `place` if it is a path on this server, else `/`."""
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
