"""What the status of an answer means for a message: taken, try again, or never."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

from ccagent.errors import RejectedError, RetryableError, TooLargeError

_TOO_LARGE = 413
_UNPROCESSABLE = 422
_BAD_REQUEST = 400
_REFUSED_LINES = ("partial write", "unable to parse")
"""What databases for line protocol say with 400 when they have read a message (InfluxDB).

The other lines of a partial write are stored.
"""

_MAY_BE_THE_MESSAGE = frozenset({400, 409})
"""Refusals of a message, which proxies and wrongly configured servers send as well."""

_MAY_BE_THE_PLACE = frozenset({403, 404, 405, 410})
"""Refusals of a URL: those of other messages may be fine if each kind has its own."""

_WHOLE_SERVER = frozenset({501, 503, 505, 507, 511})
"""Server errors that have nothing to do with a message."""

_LONGEST_NUMBER = 9


def check_status(
    status: int, text: str, said: str, *, retry_after: str, is_own_place: bool, delivered: int
) -> None:
    """Raise what the status of an answer means; return if it is success.

    Source: RFC 9110, section 15. Only answers that can't be meant for another message reject one:
    everything else may be a server that is wrongly configured for a moment. `text` is for the
    error, `said` the text of the answer. `is_own_place` is true if the URL depends on the kind of
    the message.
    """
    if 200 <= status < 300:
        return
    if status == _TOO_LARGE:
        raise TooLargeError(text, delivered=delivered)
    refuses_lines = status == _BAD_REQUEST and any(part in said for part in _REFUSED_LINES)
    if status == _UNPROCESSABLE or refuses_lines:
        raise RejectedError(text, delivered=delivered)
    raise RetryableError(
        text,
        delivered=delivered,
        after=seconds_of(retry_after, time.time()),
        is_about_message=status in _MAY_BE_THE_MESSAGE
        or (status in _MAY_BE_THE_PLACE and is_own_place)
        or (status >= 500 and status not in _WHOLE_SERVER),
    )


def seconds_of(retry_after: str, now: float) -> float:
    """Return the seconds that a Retry-After header asks for; 0 if it is none.

    Source: RFC 9110, section 10.2.3: seconds, or a date.
    """
    if retry_after.isascii() and retry_after.isdecimal() and len(retry_after) < _LONGEST_NUMBER:
        return float(retry_after)
    date = date_of(retry_after)
    return 0.0 if date is None else max(0.0, date - now)


def date_of(value: str) -> float | None:
    """Return the seconds since 1970 of a Date header (RFC 9110, 6.6.1); None if it is none."""
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
