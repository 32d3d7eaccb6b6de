"""The time range of a page, from the query of its URL."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

RANGES = {
    "1h": 3600, "6h": 21600, "12h": 43200, "24h": 86400, "48h": 172800, "7d": 604800,
}  # fmt: skip
_DURATION = re.compile(r"([1-9][0-9]{0,3})([mhd])")
_UNITS = {"m": 60, "h": 3600, "d": 86400}
_FAR = 10**11
AHEAD = 3600
"""Seconds by which clocks of nodes may be ahead."""


class ShownTime(NamedTuple):
    """A range in seconds since 1970. name: such as `6h`, of a range that ends now; "": fixed.

    problem: error in the query, "" if none.
    """

    start: int
    end: int
    name: str
    problem: str = ""

    @property
    def is_live(self) -> bool:
        """Return whether the range ends now."""
        return bool(self.name)

    @property
    def query(self) -> str:
        """Return the range as a query of a URL."""
        return f"range={self.name}" if self.name else f"from={self.start}&to={self.end}"

    @property
    def fields(self) -> tuple[str, str]:
        """Return both times in the format of the HTML input `datetime-local`."""
        moments = (datetime.fromtimestamp(one).astimezone() for one in (self.start, self.end))
        first, last = (one.strftime("%Y-%m-%dT%H:%M") for one in moments)
        return first, last


def read_times(
    query: Mapping[str, str], now: int, default: str = "24h", *, oldest: int = 0
) -> ShownTime:
    """Return the range of a query: `range=6h`, or `from` and `to`.

    oldest: start of the retention; earlier times are cut.
    """
    found = _read_times(query, now, default)
    start, end = max(found.start, oldest), min(found.end, now + AHEAD)
    if start >= end:
        return _recent(default, now, "no values are stored for this time range")
    return found._replace(start=start, end=end)


def _read_times(query: Mapping[str, str], now: int, default: str) -> ShownTime:
    name = query.get("range", "")
    if query.get("from") or query.get("to"):
        start, end = _moment(query.get("from", "")), _moment(query.get("to", ""))
        if (start is None and query.get("from")) or (end is None and query.get("to")):
            return _recent(default, now, "from and to are not valid times")
        end = now if end is None else end
        start = end - RANGES["24h"] if start is None else start
        if start >= end:
            return _recent(default, now, "from is not before to")
        return ShownTime(start, end, "")
    if name and not _DURATION.fullmatch(name):
        return _recent(default, now, f"range: expected a range such as 6h, not {name[:20]}")
    return _recent(name or default, now, "")


def _recent(name: str, now: int, problem: str) -> ShownTime:
    match = _DURATION.fullmatch(name)
    seconds = int(match[1]) * _UNITS[match[2]] if match else RANGES["24h"]
    return ShownTime(now - seconds, now, name, problem)


def _moment(text: str) -> int | None:
    """Parse seconds since 1970, or ISO 8601. Return None for any other text."""
    if text.isascii() and text.isdigit() and len(text) <= 11:
        return int(text)
    try:
        found = int(datetime.fromisoformat(text[:40]).astimezone().timestamp())
    except (ValueError, OverflowError, OSError):
        return None
    return found if 0 <= found < _FAR else None
