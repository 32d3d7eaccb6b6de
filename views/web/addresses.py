"""Addresses of pages: names as segments of a path, time ranges in the query.

They are stable: they only contain names of clusters, nodes and jobs.
Browsers resolve `..` and `%2e%2e`, and servers decode `%2F`. Therefore all characters except
letters, digits, `.`, `-` and `_` are encoded as `~` and two hexadecimal digits per byte.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Mapping


_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_ESCAPE = re.compile(rb"~([0-9A-F]{2})")
_FORM = re.compile(r"(?:[A-Za-z0-9._-]|~[0-9A-F]{2})+")
_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_LONGEST = 3 * 1024


def encode_segment(name: str) -> str:
    """Return a name as a segment of a path."""
    if _PLAIN.fullmatch(name):
        return name
    return "".join(
        chr(byte) if byte in _KEPT else f"~{byte:02X}"
        for byte in name.encode("utf-8", "surrogateescape")
    )


def decode_segment(text: str) -> str:
    """Return the name of a segment. Raise ValueError if the encoding is invalid."""
    if len(text) > _LONGEST or not _FORM.fullmatch(text):
        raise ValueError("not the address of a page")
    found = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), text.encode("ascii"))
    return found.decode("utf-8", "surrogateescape")


def cluster_link(cluster: str) -> str:
    """Return the address of a cluster."""
    return f"/cluster/{encode_segment(cluster)}"


def node_link(cluster: str, node: str) -> str:
    """Return the address of a node."""
    return f"{cluster_link(cluster)}/node/{encode_segment(node)}"


def jobs_link(cluster: str, **query: str | int) -> str:
    """Return the address of a list of jobs. query: parameters."""
    chosen = {name: value for name, value in query.items() if value not in ("", 0)}
    return f"{cluster_link(cluster)}/jobs" + (f"?{urlencode(chosen)}" if chosen else "")


def job_link(cluster: str, job: str, start: int = 0) -> str:
    """Return the address of a job; with `start` of one of its runs."""
    link = f"{cluster_link(cluster)}/job/{encode_segment(job)}"
    return f"{link}/{start}" if start else link


def any_job_link(job: str) -> str:
    """Return the address that leads to a job in any cluster."""
    return f"/job/{encode_segment(job)}"


RANGES = {
    "1h": 3600, "6h": 21600, "12h": 43200, "24h": 86400, "48h": 172800, "7d": 604800,
}  # fmt: skip
_DURATION = re.compile(r"([1-9][0-9]{0,3})([mhd])")
_UNITS = {"m": 60, "h": 3600, "d": 86400}
_FAR = 10**11
_FEWEST_STEPS = 5
AHEAD = 3600
"""Seconds by which clocks of nodes may be ahead."""


class ShownTime(NamedTuple):
    """A range in seconds since 1970. name: such as `6h`, of a range that ends now; "": fixed.

    problem: error in the query, "" if none. is_cut: the range begins with the first value.
    """

    start: int
    end: int
    name: str
    problem: str = ""
    is_cut: bool = False

    @property
    def is_live(self) -> bool:
        """Return whether the range ends now."""
        return bool(self.name)

    @property
    def query(self) -> str:
        """Return the range as a query of a URL."""
        return urlencode(self.parameters)

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Return the range as parameters of a URL."""
        if self.name:
            return [("range", self.name)]
        return [("from", str(self.start)), ("to", str(self.end))]


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


def cut_times(times: ShownTime, first: int, step: int) -> ShownTime:
    """Return a range that ends now without its time before the first value, but a few steps long.

    first: seconds since 1970, 0: no values. step: seconds between values.
    """
    start = min(first, times.end - _FEWEST_STEPS * step)
    if not (first and times.is_live and start > times.start):
        return times
    return times._replace(start=start, is_cut=True)


def _read_times(query: Mapping[str, str], now: int, default: str) -> ShownTime:
    name = query.get("range", "")
    if query.get("from") or query.get("to"):
        start, end = read_moment(query.get("from", "")), read_moment(query.get("to", ""))
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


def read_moment(text: str, zone: tzinfo = UTC) -> int | None:
    """Parse seconds since 1970, or ISO 8601. Return None for any other text.

    zone: of a text without one. Of a time that a change of the clock repeats, the first is meant.
    """
    if text.isascii() and text.isdigit() and len(text) <= 11:
        return int(text)
    try:
        moment = datetime.fromisoformat(text[:40])
        found = int((moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp())
    except (ValueError, OverflowError, OSError):
        return None
    return found if 0 <= found < _FAR else None
