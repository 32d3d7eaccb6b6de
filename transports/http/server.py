"""The server of a sink: requests over one kept connection, and the errors of its answers."""

from __future__ import annotations

import time
from http.client import HTTPException, responses
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import RejectedError, RetryableError
from ccagent.transports.base import ProbeResult
from ccagent.transports.http.answers import check_status, parse_date
from ccagent.transports.http.connection import HttpConnection, is_broken_off
from ccagent.transports.http.settings import server_of_url, split_proxy
from ccagent.transports.network import make_tls_context
from ccagent.transports.peer_text import hide_secrets

if TYPE_CHECKING:
    from collections.abc import Callable
    from urllib.parse import SplitResult

    from ccagent.transports.http.settings import HttpSettings

_LOGIN_REFUSED = frozenset({401, 403, 407})
_NO_SERVER = frozenset({500, 502, 503, 504})
_HALF_A_SECOND = 0.5
"""The mean error of a Date header in seconds. It has whole seconds."""


class HttpRequest(NamedTuple):
    """A request without its body.

    place: the URL in errors. secrets: secrets in the headers. own: names that an answer may repeat.
    has_own_url: the URL depends on the kind of the message.
    """

    place: str
    path: str
    headers: dict[str, str]
    secrets: list[str]
    own: tuple[str, ...] = ()
    has_own_url: bool = True


class HttpServer:
    """Sends requests to one server, through a proxy if configured."""

    def __init__(self, settings: HttpSettings, target: SplitResult) -> None:
        self._connection = HttpConnection(
            server_of_url(target),
            make_tls_context(settings) if target.scheme == "https" else None,
            settings.time_limit.seconds,
            split_proxy(settings),
        )

    def post(
        self,
        request: HttpRequest,
        body: bytes,
        delivered: int,
        is_repeated: Callable[[int, str], bool] | None = None,
    ) -> str:
        """Post a body and return the answer, without secrets. Raise TransportError.

        is_repeated: whether status and text answer a repeated message.
        """
        try:
            answer = self._connection.post(request.path, body, request.headers)
        except (HTTPException, OSError, UnicodeError) as error:
            raise RetryableError(
                f"{request.place}: {self._connection.explain(error, request.secrets)}",
                delivered=delivered,
                is_about_message=self._connection.is_sent and is_broken_off(error),
            ) from None  # the cause may repeat a secret
        status = f"{answer.status} {responses.get(answer.status, '')}"
        text = answer.body.decode("utf-8", "replace")
        if text:
            status += f": {hide_secrets(text, request.secrets, request.own)}"
        if is_repeated is None or not is_repeated(answer.status, text):
            check_status(
                answer.status,
                f"{request.place}: {status}",
                text,
                retry_after=answer.retry_after,
                has_own_url=request.has_own_url,
                delivered=delivered,
            )
        return status

    def get(self, request: HttpRequest, delivered: int) -> bytes:
        """Return the body of an answer to GET, of any status. Raise RetryableError without one."""
        try:
            answer = self._connection.get(request.path, request.headers)
        except (HTTPException, OSError, UnicodeError) as error:
            text = f"{request.place}: {self._connection.explain(error, request.secrets)}"
            raise RetryableError(text, delivered=delivered) from None  # as in `post`
        return answer.body

    def probe(self, request: HttpRequest) -> ProbeResult:
        """Send a HEAD request.

        Any answer of the server is success, except for a refused login (RejectedError) or a proxy
        that can't reach its server (RetryableError).
        """
        before = time.time()
        try:
            answer = self._connection.request_head(request.path, request.headers)
        except (HTTPException, OSError, UnicodeError) as error:
            text = f"{request.place}: {self._connection.explain(error, request.secrets)}"
            raise RetryableError(text) from None  # the cause may repeat a secret
        after = time.time()
        status = f"{answer.status} {responses.get(answer.status, '')}"
        if answer.status in _LOGIN_REFUSED:
            raise RejectedError(f"{request.place}: {status}: the login is refused")
        if answer.status in _NO_SERVER:
            raise RetryableError(f"{request.place}: {status}")
        date = parse_date(answer.date)
        offset = None if date is None else (before + after) / 2 - date - _HALF_A_SECOND
        return ProbeResult(f"it answers HEAD with {status}", offset, (after - before) / 2)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
