"""Authentication of viewers, by a token or by the header of a trusted proxy.

Users see their own jobs, staff all jobs. A token is stored in a cookie with HttpOnly and
SameSite=Lax. It is checked at each request. The server stores no sessions.
"""

from __future__ import annotations

import base64
import hmac
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.config.secret import read_secret
from ccagent.errors import ConfigurationError
from ccagent.stores.metrics.tokens import READ, STAFF_ROLES, UnauthorizedError

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from ccagent.stores.metrics.tokens import TokenVerifier
    from ccagent.views.web.settings import WebSettings

COOKIE = "ccagent-session"
_LONGEST_NAME = 256


class Viewer(NamedTuple):
    """A person. name: "" if the pages are open to all."""

    name: str
    is_staff: bool

    def may_see(self, user: str) -> bool:
        """Return whether a person may see the jobs of a user."""
        return self.is_staff or (bool(self.name) and self.name == user)


class _Person(msgspec.Struct, frozen=True):
    sub: str | None = None
    roles: list[str] | str | None = None


class PageAccess:
    """The check of viewers, by settings and the store's key."""

    def __init__(self, settings: WebSettings, verifier: TokenVerifier | None) -> None:
        """Read the proxy's secret. Raise ConfigurationError if it is missing or too short."""
        self._verifier = verifier
        self._staff = frozenset(settings.staff)
        self._proxies = frozenset(settings.proxies)
        self._header = settings.proxy_header
        self._secret = _read_secret(settings) if settings.proxies else ""
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
        named = self._named_by_proxy(request)
        if named is not None:
            return named
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

    def _named_by_proxy(self, request: HTTPConnection) -> Viewer | None:
        name = request.headers.get(self._header, "")
        if not name or len(name) > _LONGEST_NAME or not self._is_from_proxy(request):
            return None
        return Viewer(name, is_staff=name in self._staff)

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


def _read_secret(settings: WebSettings) -> str:
    if not settings.proxy_secret_file:
        raise ConfigurationError("web.proxies: requires web.proxy-secret-file")
    secret = read_secret(settings.proxy_secret_file)
    if len(secret) < 16:
        raise ConfigurationError(f"{settings.proxy_secret_file}: expected at least 16 characters")
    return secret
