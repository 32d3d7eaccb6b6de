"""The server of a sink: requests over one kept connection, and the errors of its answers."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from http.client import HTTPException, responses
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import RejectedError, RetryableError, TooLargeError
from ccagent.net.error_texts import hide_secrets
from ccagent.net.http_client import LARGEST_ANSWER, HttpConnection, is_broken_off
from ccagent.net.tls import make_tls_context
from ccagent.net.urls import server_of_url
from ccagent.transports.base import ProbeResult

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from ccagent.net.http_client import HttpAnswer
    from ccagent.net.urls import Server
    from ccagent.transports.base import NetworkSinkSettings

_TOO_LARGE = 413
_UNPROCESSABLE = 422
_BAD_REQUEST = 400

_REFUSED_LINES = ("partial write", "unable to parse")
"""Texts from databases for line protocol that have parsed a message (InfluxDB, ccagent's store).

After a partial write the valid lines are stored.
"""

_PARTLY = frozenset({_BAD_REQUEST, 429, 507})
"""Statuses of a message whose valid lines are stored. 429, 507: without its new series."""

_UNKNOWN_CLUSTER = "Failed to find cluster"
"""Text with status 400 from Jobanalyzer for a cluster without a directory (sonalyze)."""

_MAY_BE_THE_MESSAGE = frozenset({400, 409})
"""Refusals of a message. Proxies and misconfigured servers send them, too."""

_MAY_BE_THE_PLACE = frozenset({403, 404, 405, 410})
"""Refusals of a URL. Other messages may be accepted if each kind has a separate URL."""

_WHOLE_SERVER = frozenset({501, 503, 505, 507, 511})
"""Server errors that are not caused by a message."""

_BUSY = frozenset({429, 503, 507})
_LONGEST_NUMBER = 9
_LOGIN_REFUSED = frozenset({401, 403, 407})
_NO_SERVER = frozenset({500, 502, 503, 504})

_HALF_A_SECOND = 0.5
"""The mean error of a Date header in seconds. It has whole seconds."""


def check_status(
    status: int, text: str, answer: str, *, retry_after: str, has_own_url: bool, delivered: int
) -> None:
    """Raise the error for the status of an answer; return if it is success.

    Source: RFC 9110, section 15. Only answers about this message reject it. All others may come
    from a temporarily misconfigured server.

    text: of the error. answer: text of the answer. has_own_url: the URL depends on the kind of the
    message.
    """
    if 200 <= status < 300:
        return
    if status == _TOO_LARGE:
        raise TooLargeError(text, delivered=delivered)
    refuses_lines = status in _PARTLY and any(words in answer for words in _REFUSED_LINES)
    if status == _UNPROCESSABLE or refuses_lines:
        raise RejectedError(text, delivered=delivered)
    raise RetryableError(
        text,
        delivered=delivered,
        after=parse_retry_after(retry_after, time.time()),
        is_about_message=(status in _MAY_BE_THE_MESSAGE and _UNKNOWN_CLUSTER not in answer)
        or (status in _MAY_BE_THE_PLACE and has_own_url)
        or (status >= 500 and status not in _WHOLE_SERVER),
        is_busy=status in _BUSY,
    )


def parse_retry_after(retry_after: str, now: float) -> float:
    """Return the seconds in a Retry-After header; 0 for a malformed one.

    Source: RFC 9110, section 10.2.3: seconds, or a date.
    """
    if retry_after.isascii() and retry_after.isdecimal() and len(retry_after) < _LONGEST_NUMBER:
        return float(retry_after)
    date = parse_date(retry_after)
    return 0.0 if date is None else max(0.0, date - now)


def parse_date(value: str) -> float | None:
    """Return the seconds since 1970 of a Date header (RFC 9110, 6.6.1); None if malformed."""
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


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

    def __init__(
        self,
        settings: NetworkSinkSettings,
        target: SplitResult,
        proxy: Server | None,
        largest: int | None = None,
    ) -> None:
        """largest: maximum bytes read of an answer."""
        self._connection = HttpConnection(
            server_of_url(target),
            make_tls_context(settings) if target.scheme == "https" else None,
            settings.time_limit.seconds,
            proxy,
            largest=largest or LARGEST_ANSWER,
        )

    def post(self, request: HttpRequest, body: bytes, delivered: int) -> str:
        """Post a body and return the answer, without secrets. Raise TransportError."""
        answer, status = self.exchange(request, body, delivered)
        self.check(request, answer, status, delivered)
        return status

    def check(self, request: HttpRequest, answer: HttpAnswer, status: str, delivered: int) -> None:
        """Raise TransportError unless an answer is success. status: its phrase in the error."""
        check_status(
            answer.status,
            f"{request.place}: {status}",
            answer.body.decode("utf-8", "replace"),
            retry_after=answer.retry_after,
            has_own_url=request.has_own_url,
            delivered=delivered,
        )

    def exchange(
        self, request: HttpRequest, body: bytes | None, delivered: int
    ) -> tuple[HttpAnswer, str]:
        """Post a body, or get a resource, and return the answer, and a phrase without secrets.

        Raise RetryableError if there is no answer.
        """
        try:
            if body is None:
                answer = self._connection.get(request.path, request.headers)
            else:
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
        return answer, status

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
