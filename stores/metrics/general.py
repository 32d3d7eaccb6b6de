"""The general path of ingest: each line is decoded separately by the line protocol decoder."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ccagent.records.line_protocol.decoding import decode_lines
from ccagent.records.line_protocol.lines import LineError
from ccagent.stores.metrics.line_keys import check_name, level_path
from ccagent.stores.metrics.line_times import seconds
from ccagent.stores.metrics.part_tags import add_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.records.line_protocol.lines import Line
    from ccagent.stores.metrics.groups import Path, StoredSeries
    from ccagent.stores.metrics.part_limits import PartLimits
    from ccagent.stores.metrics.store import MetricStore

MOST_REPORTED = 100
"""Maximum number of bad lines in a response."""


class BadLine(NamedTuple):
    """A line that was not stored. number: from 1."""

    number: int
    reason: str


class DecodedLines(NamedTuple):
    """The values of a message."""

    points: list[tuple[StoredSeries, int, float]]
    found: dict[bytes, StoredSeries | None]
    """Series by key, the text before the first blank."""
    bad: list[BadLine]
    bad_count: int
    unkept: str
    """Reason why events are only in memory."""


class DecodedPoint(NamedTuple):
    """A value with its level. number: number of the line."""

    number: int
    path: Path
    metric: str
    time: int
    value: float
    key: bytes


class _Decoding:
    """State while the lines of a message are decoded."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.time: int | None = None
        """Time of the previous line."""
        self.points: list[DecodedPoint] = []
        self.skipped: list[bytes] = []
        self.bad: list[BadLine] = []
        self.bad_count = 0
        self.unkept = ""

    def skip(self, line: bytes) -> None:
        """Record the key of a skipped line, unless the fast paths would split it differently."""
        key = _key(line)
        if _is_remembered(key):
            self.skipped.append(key)

    def complain(self, number: int, reason: str) -> None:
        self.bad_count += 1
        if len(self.bad) < MOST_REPORTED:
            self.bad.append(BadLine(number, reason))


class GeneralIngest:
    """Finds the series of each line, and creates new series."""

    def __init__(
        self,
        store: MetricStore,
        *,
        future: int,
        is_strict: bool,
        most_series: int,
        others: Callable[[Line], str] | None,
        parts: PartLimits,
        past: int | None = None,
    ) -> None:
        """Set limits. future, past: seconds ahead of and behind the clock; past None: no limit."""
        self._parts = parts
        self._store = store
        self._past = past
        self._future = future
        self._is_strict = is_strict
        self._most_series = most_series
        self._others = others

    def decode(self, body: bytes, cluster: str) -> DecodedLines:
        """Decode all lines of a message. Skip bad lines; if `is_strict`, stop at the first."""
        decoding = _Decoding(cluster)
        self._parts.begin()
        for number, line in enumerate(body.split(b"\n"), 1):
            if not self._decode_line(decoding, number, line) and self._is_strict:
                break
        points, found = self._place(decoding)
        found |= dict.fromkeys(decoding.skipped)
        return DecodedLines(
            points, found, sorted(decoding.bad), decoding.bad_count, decoding.unkept
        )

    def _decode_line(self, decoding: _Decoding, number: int, text: bytes) -> bool:
        """Decode one line. Return whether it is valid."""
        stripped = text.strip(b" \r")
        if not stripped or stripped.startswith(b"#"):
            return True
        try:
            (line,) = decode_lines(stripped.decode("utf-8", "surrogateescape"), "any")
        except LineError as error:
            if self._store.catalogue.get(_measurement(stripped)) is None:
                return True
            decoding.complain(number, f"expected {error.expected} at column {error.column}")
            return False
        except ValueError:
            decoding.complain(number, "not a single line")
            return False
        known = self._store.catalogue.get(line.measurement)
        if line.field in _OTHER_FIELDS and not self._store.catalogue.is_listed(line.measurement):
            if self._others is not None:
                decoding.unkept = self._others(line) or decoding.unkept
            return True
        if known is None:
            decoding.skip(stripped)
            return True
        try:
            check_name(line.measurement)
            value = _number(line)
            level = level_path(line.tags, decoding.cluster)
            time = self._time(decoding, line)
        except ValueError as error:
            decoding.complain(number, str(error))
            return False
        names = self._store.catalogue.part_tags(line.measurement)
        path = add_part(level, line.tags, names) if names else level
        if path is not level and not self._parts.admit(path):
            # Not an error: a user could otherwise cause errors in the messages of a node.
            decoding.skip(stripped)
            return True
        decoding.points.append(
            DecodedPoint(number, path, line.measurement, time, value, _key(stripped))
        )
        return True

    def _time(self, decoding: _Decoding, line: Line) -> int:
        """Return the time of a line in s. Raise ValueError if the time is out of range."""
        now = int(self._store.now())
        if line.time is None:
            return now if decoding.time is None else decoding.time
        time = seconds(line.time)
        if time > now + self._future:
            raise ValueError(f"time {time} is {time - now} s in the future; check the clock")
        if self._past is not None and time < now - self._past:
            raise ValueError(
                f"time {time} is {now - time} s ago; values are kept for {self._past} s"
            )
        decoding.time = time
        return time

    def _refusal(self) -> str:
        if self._store.is_full:
            return "values exceed memory-cap: new series are refused"
        return f"the store has {self._most_series} series (limits.series): new series are refused"

    def _place(
        self, decoding: _Decoding
    ) -> tuple[list[tuple[StoredSeries, int, float]], dict[bytes, StoredSeries | None]]:
        """Find the series of the values. New series of one node, time and step become a group."""
        store = self._store
        new: dict[tuple[str, str, int, int], dict[tuple[Path, str], None]] = {}
        count = store.series
        for _, path, metric, time, _, _ in decoding.points:
            if store.find(path, metric) is None:
                known = store.catalogue.get(metric)
                if known is None or count >= self._most_series or store.is_full:
                    continue
                new.setdefault((path[0], path[1], known.frequency, time), {})[path, metric] = None
                count += 1
        for (_, _, frequency, time), wanted in new.items():
            missing = [one for one in wanted if store.find(*one) is None]
            if missing:
                store.add(missing, time, frequency)
        points: list[tuple[StoredSeries, int, float]] = []
        found: dict[bytes, StoredSeries | None] = {}
        for number, path, metric, time, value, key in decoding.points:
            series = store.find(path, metric)
            if series is None:
                decoding.complain(number, self._refusal())
                continue
            points.append((series, time, value))
            if _is_remembered(key):
                found[key] = series
        return points, found


_LONGEST_KEY = 2048
_OTHER_FIELDS = {"event", "log", "control", "query"}


def _number(line: Line) -> float:
    """Return the value of a metric's line. Raise ValueError."""
    if line.field != "value":
        raise ValueError(f"expected the field value, not {line.field}")
    if isinstance(line.value, bool | str):
        raise ValueError("expected a number as the value of a metric")  # noqa: TRY004 - it is the line's
    value = float(line.value)
    if not math.isfinite(value):
        raise ValueError("expected a finite value of a metric")
    return value


def _measurement(line: bytes) -> str:
    """Return the probable measurement of a line that can't be decoded."""
    text = line.partition(b" ")[0].partition(b",")[0]
    return text.decode("utf-8", "replace")


def _is_remembered(key: bytes) -> bool:
    """Return whether the fast paths may use a key. Long keys would need too much memory.

    The fast paths split words at each blank, the decoder not at an escaped blank.
    """
    return len(key) <= _LONGEST_KEY and not key.endswith(b"\\")


def _key(line: bytes) -> bytes:
    """Return the text before the first blank."""
    return line.partition(b" ")[0]
