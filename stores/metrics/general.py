"""The general path of ingest: each line is decoded separately by the line protocol decoder."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from ccagent.records.line_protocol.decoding import LineError, decode_lines
from ccagent.stores.metrics.line_keys import check_name, level_path
from ccagent.stores.metrics.line_times import seconds
from ccagent.stores.metrics.part_tags import add_part
from ccagent.stores.metrics.series_limits import SeriesRefusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.records.line_protocol.decoding import Line
    from ccagent.stores.metrics.groups import Path, StoredSeries
    from ccagent.stores.metrics.part_limits import PartLimits
    from ccagent.stores.metrics.series_limits import SeriesLimits
    from ccagent.stores.metrics.store import MetricStore

MOST_REPORTED = 100
"""Maximum number of bad lines in a response."""


class BadLine(NamedTuple):
    """A line that was not stored. number: from 1."""

    number: int
    reason: str


class DecodedLines(NamedTuple):
    """The values of a piece of a message."""

    points: list[tuple[StoredSeries, int, float]]
    found: dict[bytes, StoredSeries | None]
    """Series by key, the text before the first blank."""


class DecodedPoint(NamedTuple):
    """A value with its level. number: number of the line."""

    number: int
    path: Path
    metric: str
    time: int
    value: float
    key: bytes


class LineMessage:
    """State of a message whose pieces are decoded one after the other.

    cluster: default of lines without the tag `cluster`. sender: identity of the sender.
    """

    # Defaults of the class: most messages never set these attributes.
    time: int | None = None
    """Time of the previous line."""
    lines = 0
    """Number of lines of the previous pieces."""
    stored = 0
    bad_count = 0
    new_series = 0
    refused = 0
    """Number of values of refused series."""
    refusal: SeriesRefusal | None = None
    """Why the first new series was refused."""
    unkept = ""
    """Reason why events of the message are only in memory; the sender must send them again."""
    is_ended = False
    """True if the first bad line ended the message."""

    def __init__(self, cluster: str, sender: str = "") -> None:
        self.cluster = cluster
        self.sender = sender
        self.bad: list[BadLine] = []
        """The first bad lines, and the first lines of refused series."""

    def complain(self, number: int, reason: str) -> None:
        """Count a bad line of the present piece. number: within the piece."""
        self.bad_count += 1
        if len(self.bad) < MOST_REPORTED:
            self.bad.append(BadLine(self.lines + number, reason))

    def refuse(self, number: int, refusal: SeriesRefusal) -> None:
        """Count a value of a refused series."""
        self.refused += 1
        self.refusal = self.refusal or refusal
        self.complain(number, refusal.reason)

    def note(self, number: int, problem: SeriesRefusal | str) -> None:
        """Note why an event is refused, or must be sent again."""
        if isinstance(problem, SeriesRefusal):
            self.refuse(number, problem)
        else:
            self.unkept = problem or self.unkept


class _Decoding:
    """State while the lines of a piece are decoded."""

    def __init__(self, message: LineMessage) -> None:
        self.message = message
        self.points: list[DecodedPoint] = []
        self.skipped: list[bytes] = []

    def skip(self, line: bytes) -> None:
        """Record the key of a skipped line, unless the fast paths would split it differently."""
        key = _key(line)
        if _is_remembered(key):
            self.skipped.append(key)


class GeneralIngest:
    """Finds the series of each line, and creates new series."""

    def __init__(
        self,
        store: MetricStore,
        *,
        future: int,
        is_strict: bool,
        series: SeriesLimits,
        others: Callable[[Line, str], SeriesRefusal | str] | None,
        parts: PartLimits,
        past: int | None = None,
    ) -> None:
        """Set limits. future, past: seconds ahead of and behind the clock; past None: no limit."""
        self._parts = parts
        self._store = store
        self._past = past
        self._future = future
        self._is_strict = is_strict
        self._series = series
        self._others = others

    def decode(self, piece: bytes, message: LineMessage) -> DecodedLines:
        """Decode all lines of a piece. Skip bad lines; if `is_strict`, stop at the first."""
        decoding = _Decoding(message)
        self._parts.begin()
        for number, line in enumerate(piece.split(b"\n"), 1):
            if not self._decode_line(decoding, number, line) and self._is_strict:
                message.is_ended = True
                break
        points, found = self._place(decoding)
        message.stored += len(points)
        message.lines += piece.count(b"\n")
        found |= dict.fromkeys(decoding.skipped)
        return DecodedLines(points, found)

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
            decoding.message.complain(number, f"expected {error.expected} at column {error.column}")
            return False
        except ValueError:
            decoding.message.complain(number, "not a single line")
            return False
        known = self._store.catalogue.get(line.measurement)
        if line.field in _OTHER_FIELDS and not self._store.catalogue.is_listed(line.measurement):
            if self._others is not None:
                decoding.message.note(number, self._others(line, decoding.message.sender))
            return True
        if known is None:
            decoding.skip(stripped)
            return True
        try:
            check_name(line.measurement)
            value = _number(line)
            level = level_path(line.tags, decoding.message.cluster)
            time = self._time(decoding.message, line)
        except ValueError as error:
            decoding.message.complain(number, str(error))
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

    def _time(self, message: LineMessage, line: Line) -> int:
        """Return the time of a line in s. Raise ValueError if the time is out of range."""
        now = int(self._store.now())
        if line.time is None:
            return now if message.time is None else message.time
        time = seconds(line.time)
        if time > now + self._future:
            raise ValueError(f"time {time} is {time - now} s in the future; check the clock")
        if self._past is not None and time < now - self._past:
            raise ValueError(
                f"time {time} is {now - time} s ago; values are kept for {self._past} s"
            )
        message.time = time
        return time

    def _place(
        self, decoding: _Decoding
    ) -> tuple[list[tuple[StoredSeries, int, float]], dict[bytes, StoredSeries | None]]:
        """Find the series of the values. New series of one node, time and step become a group."""
        store = self._store
        refusals = self._make_series(decoding)
        points: list[tuple[StoredSeries, int, float]] = []
        found: dict[bytes, StoredSeries | None] = {}
        for number, path, metric, time, value, key in decoding.points:
            series = store.find(path, metric)
            if series is None:
                decoding.message.refuse(number, refusals[path, metric])
                continue
            points.append((series, time, value))
            if _is_remembered(key):
                found[key] = series
        return points, found

    def _make_series(self, decoding: _Decoding) -> dict[tuple[Path, str], SeriesRefusal]:
        """Make the missing series. Return the refused ones."""
        store, message = self._store, decoding.message
        new: dict[tuple[str, str, int, int], list[tuple[Path, str]]] = {}
        seen: set[tuple[Path, str]] = set()
        refusals: dict[tuple[Path, str], SeriesRefusal] = {}
        for _, path, metric, time, _, _ in decoding.points:
            one = (path, metric)
            if store.find(path, metric) is not None or one in seen:
                continue
            if not seen:
                self._series.begin()
            seen.add(one)
            count = store.series + len(seen) - len(refusals) - 1
            refusal = self._series.admit(message.sender, path[0], path[1], count)
            known = store.catalogue.get(metric)
            if refusal is not None or known is None:
                refusals[one] = refusal or _NOT_ACCEPTED
            else:
                new.setdefault((path[0], path[1], known.frequency, time), []).append(one)
        for (_, _, frequency, time), wanted in new.items():
            store.add(wanted, time, frequency)
            message.new_series += len(wanted)
        return refusals


_NOT_ACCEPTED = SeriesRefusal(HTTPStatus.BAD_REQUEST, "the store does not accept this metric")
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
