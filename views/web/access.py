"""Authentication of viewers, by a token or by the header of a trusted proxy; login and logout.

Users see their own jobs, staff all jobs. A token is stored in a cookie with HttpOnly and
SameSite=Lax. It is checked at each request. The server stores no sessions.
"""

from __future__ import annotations

import base64
import hmac
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, quote

import msgspec
from starlette.responses import RedirectResponse, Response

from ccagent.stores.metrics.tokens import READ, STAFF_ROLES, TokenVerifier, UnauthorizedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import HTTPConnection, Request

    from ccagent.stores.metrics.page_settings import WebSettings


COOKIE = "ccagent-session"
_LONGEST_NAME = 256
_LARGEST_FORM = 32 << 10
_SECONDS = 12 * 3600
_LONGEST_TOKEN = 3800
"""Browsers silently drop cookies above 4,096 bytes."""


class Viewer(NamedTuple):
    """A person. name: "" if the pages are open to all."""

    name: str
    is_staff: bool

    @property
    def scope(self) -> Viewer:
        """Return an equal value for all viewers who may see the same."""
        return self._replace(name="") if self.is_staff else self

    def may_see(self, user: str) -> bool:
        """Return whether a person may see the jobs of a user."""
        return self.is_staff or (bool(self.name) and self.name == user)


class _Person(msgspec.Struct, frozen=True):
    sub: str | None = None
    roles: list[str] | str | None = None


class PageAccess:
    """The check of viewers, by settings and the store's key, and the sessions of browsers.

    The token of a session is stored in a cookie, and not on the server.
    """

    def __init__(self, settings: WebSettings, verifier: TokenVerifier | None) -> None:
        """Read the proxy's secret. Raise ConfigurationError if it is missing or too short."""
        self._verifier = verifier
        self._staff = frozenset(settings.staff)
        self._proxies = frozenset(settings.proxies)
        self._header = settings.proxy_header
        self._secret = settings.read_secret() if settings.proxies else ""
        self._is_behind_tls = settings.behind_tls

    @property
    def is_open(self) -> bool:
        """Return whether the pages are open to all: neither a key nor proxies are configured."""
        return self._verifier is None and not self._proxies

    @property
    def takes_tokens(self) -> bool:
        """Return whether logins with tokens are possible."""
        return self._verifier is not None

    def is_encrypted(self, request: HTTPConnection) -> bool:
        """Return whether the browser used TLS: to this server, or to a proxy that reports TLS."""
        if request.url.scheme == "https" or self._is_behind_tls:
            return True
        return (
            self._is_from_proxy(request)
            and request.headers.get("x-forwarded-proto", "").strip().lower() == "https"
        )

    def find_viewer(self, request: HTTPConnection) -> Viewer | None:
        """Return the viewer of a request; None if a login is required."""
        if self.is_open:
            return Viewer("", is_staff=True)
        name = request.headers.get(self._header, "")
        if name and len(name) <= _LONGEST_NAME and self._is_from_proxy(request):
            return Viewer(name, is_staff=name in self._staff)
        token = request.cookies.get(COOKIE, "")
        given = request.headers.get("authorization", "")
        if given.lower().startswith("bearer "):
            token = given[7:].strip()
        if not token:
            return None
        try:
            return self.check_token(token)
        except UnauthorizedError:
            return None

    def check_token(self, token: str) -> Viewer:
        """Return the viewer of a token. Raise UnauthorizedError if it is invalid or can't read."""
        if self._verifier is None:
            raise UnauthorizedError("this store does not accept tokens")
        text = token.encode("utf-8", "replace")
        if not self._verifier.rights(b"Bearer " + text) & READ:
            raise UnauthorizedError("the roles of this token do not allow reading")
        person = _person(text)
        roles = [person.roles] if isinstance(person.roles, str) else person.roles or []
        known = {role.lower().removeprefix("role_") for role in roles}
        name = (person.sub or "")[:_LONGEST_NAME]
        # A token without roles and name belongs to a program, which may read everything.
        is_staff = bool(known & STAFF_ROLES) or name in self._staff or not (name or roles)
        return Viewer(name, is_staff=is_staff)

    def has_session(self, request: Request) -> bool:
        """Return whether the request has the session's cookie."""
        return self.takes_tokens and COOKIE in request.cookies

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
            self.check_token(token)
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
            secure=self.is_encrypted(request),
        )  # fmt: skip
        return answer

    async def log_out(self, request: Request) -> Response:
        """Delete the cookie."""
        if not is_own_form(request):
            return Response("this form was sent by another site\n", 403, media_type="text/plain")
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(
            COOKIE, httponly=True, samesite="lax", secure=self.is_encrypted(request)
        )
        return answer

    @staticmethod
    def next_page(place: str) -> str:
        """Return `place` if it is a path on this server, else `/`."""
        is_own = place.startswith("/") and not place.startswith(("//", "/\\"))
        is_plain = place.isascii() and place.isprintable() and "\\" not in place
        return place if is_own and is_plain else "/"

    def _is_from_proxy(self, request: HTTPConnection) -> bool:
        if request.client is None or request.client.host not in self._proxies:
            return False
        # All users on the proxy's machine share its address.
        given = request.headers.get("x-ccagent-secret", "")
        return hmac.compare_digest(given.encode(), self._secret.encode())


def _person(token: bytes) -> _Person:
    """Return the claims of a token. The signature must be checked already."""
    part = token.split(b".")[1]
    try:
        text = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
        return msgspec.json.decode(text, type=_Person)
    except (ValueError, IndexError, msgspec.DecodeError):
        raise UnauthorizedError("token is malformed: sub or roles are not text") from None


def is_own_form(request: Request) -> bool:
    """Return whether a form was sent from a page of this server."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host = request.headers.get("host", "")
    return bool(host) and request.headers.get("origin", "").partition("://")[2] == host


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
