"""The meaning of an answer's status for a message: accepted, to be retried, or rejected."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

from ccagent.errors import RejectedError, RetryableError, TooLargeError

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
    refuses_lines = status in _PARTLY and any(part in answer for part in _REFUSED_LINES)
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
