"""The general path of ingest: each line is decoded separately by the line protocol decoder."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, NamedTuple

from ccagent.records.line_protocol.decoding import LineError, decode_lines
from ccagent.stores.metrics.line_keys import add_part, check_name, level_path, seconds
from ccagent.stores.metrics.series_limits import SeriesRefusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.records.line_protocol.decoding import Line
    from ccagent.stores.metrics.groups import Path, StoredSeries
    from ccagent.stores.metrics.known_keys import LeftLine
    from ccagent.stores.metrics.series_limits import PartLimits, SeriesLimits
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
    found: dict[bytes, StoredSeries | Literal[False]]
    """Series by key, the text before the first blank; False: a metric that is not accepted."""


class DecodedPoint(NamedTuple):
    """A value with its level. number: number of the line."""

    number: int
    path: Path
    metric: str
    time: int
    value: float
    key: bytes


class KnownName(NamedTuple):
    """A metric that lines name. parts: tags that distinguish series of a level."""

    metric: str
    parts: tuple[str, ...]


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
        self.levels: dict[bytes, tuple[Path, dict[str, str]]] = {}
        """Path and tags by the text of the tags."""

    def skip(self, key: bytes) -> None:
        """Record the key of a skipped line."""
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
        self._names: dict[bytes, KnownName] = {}

    def decode(self, lines: Iterable[tuple[int, bytes]], message: LineMessage) -> DecodedLines:
        """Decode lines with their numbers. Skip bad lines; if `is_strict`, stop at the first."""
        decoding = _Decoding(message)
        self._parts.begin()
        for number, line in lines:
            if not self._decode_line(decoding, number, line) and self._is_strict:
                message.is_ended = True
                break
        return self._find_series(decoding)

    def place(self, lines: Iterable[LeftLine], message: LineMessage) -> DecodedLines:
        """Find or make the series of lines that the scanner has left. Decode those not plain."""
        decoding = _Decoding(message)
        self._parts.begin()
        names, levels, points = self._names, decoding.levels, decoding.points
        for number, line, key, value, time, before in lines:
            if before is not None:
                message.time = before
            text, _, tags = key.partition(b",")
            name, level = names.get(text), levels.get(tags)
            if name is None or level is None or time is None:
                self._decode_line(decoding, number, line)
                continue
            message.time = time
            point = DecodedPoint(number, level[0], name.metric, time, value, key)
            if name.parts:
                self._add_part(decoding, point, level[1], name.parts)
            else:
                points.append(point)
        return self._find_series(decoding)

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
        catalogue = self._store.catalogue
        known = catalogue.get(line.measurement)
        if line.field in _OTHER_FIELDS and not catalogue.is_listed(line.measurement):
            if self._others is not None:
                decoding.message.note(number, self._others(line, decoding.message.sender))
            return True
        if known is None:
            decoding.skip(_key(stripped))
            return True
        try:
            self._take_line(decoding, number, line, _key(stripped))
        except ValueError as error:
            decoding.message.complain(number, str(error))
            return False
        return True

    def _take_line(self, decoding: _Decoding, number: int, line: Line, key: bytes) -> None:
        """Take a value, and remember the name and tags in its key. Raise ValueError."""
        check_name(line.measurement)
        value = _number(line)
        level = level_path(line.tags, decoding.message.cluster)
        time = self._time(decoding.message, line)
        parts = self._store.catalogue.part_tags(line.measurement)
        if b"\\" not in key:  # an escaped comma is not the end of a name
            name, _, tags = key.partition(b",")
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[name] = KnownName(line.measurement, parts)
            decoding.levels[tags] = level, line.tags
        point = DecodedPoint(number, level, line.measurement, time, value, key)
        if parts:
            self._add_part(decoding, point, line.tags, parts)
        else:
            decoding.points.append(point)

    def _add_part(
        self, decoding: _Decoding, point: DecodedPoint, tags: dict[str, str], names: tuple[str, ...]
    ) -> None:
        """Add a value in the part of its level that the tags name."""
        path = add_part(point.path, tags, names)
        if path is point.path or self._parts.admit(path):
            decoding.points.append(point._replace(path=path))
        else:
            # Not an error: a user could otherwise cause errors in the messages of a node.
            decoding.skip(point.key)

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

    def _find_series(self, decoding: _Decoding) -> DecodedLines:
        """Find the series of the values. Make missing ones."""
        levels: dict[Path, dict[str, StoredSeries]] = {}
        new: dict[Path, set[str]] = {}
        missing: list[tuple[Path, str, int]] = []
        last: Path | None = None
        series: dict[str, StoredSeries] = {}
        names: set[str] = set()
        for _, path, metric, time, _, _ in decoding.points:
            if path is not last:
                last = path
                if path not in levels:
                    levels[path] = self._series_at(path)
                    new[path] = set()
                series, names = levels[path], new[path]
            if metric not in series and metric not in names:
                names.add(metric)
                missing.append((path, metric, time))
        refusals = self._make_series(missing, decoding.message) if missing else {}
        levels = {path: self._series_at(path) for path in levels}
        points: list[tuple[StoredSeries, int, float]] = []
        found: dict[bytes, StoredSeries | Literal[False]] = {}
        for key in decoding.skipped:
            found[key] = False
        last = None
        for number, path, metric, time, value, key in decoding.points:
            if path is not last:
                last, series = path, levels[path]
            one = series.get(metric)
            if one is None:
                decoding.message.refuse(number, refusals[path, metric])
                continue
            points.append((one, time, value))
            found[key] = one
        return DecodedLines(points, found)

    def _series_at(self, path: Path) -> dict[str, StoredSeries]:
        """Return the series of a level by metric; none if it does not exist."""
        level = self._store.root.find(path)
        return {} if level is None else level.series

    def _make_series(
        self, missing: list[tuple[Path, str, int]], message: LineMessage
    ) -> dict[tuple[Path, str], SeriesRefusal]:
        """Make series with their first times. Return why some are refused.

        New series of one node, time and step become a group. Its columns have the order of the
        lines: a sum over components is fast if their columns are equidistant.
        """
        store = self._store
        new: dict[tuple[str, str, int, int], list[tuple[Path, str]]] = {}
        refusals: dict[tuple[Path, str], SeriesRefusal] = {}
        group: list[tuple[Path, str]] = []
        last: tuple[str, str, int, int] | None = None
        for path, metric, time in missing:
            known = store.catalogue.get(metric)
            if known is None:
                refusals[path, metric] = _NOT_ACCEPTED
                continue
            name = path[0], path[1], known.frequency, time
            if name != last:
                last, group = name, new.setdefault(name, [])
            group.append((path, metric))
        self._series.begin()
        for (cluster, node, frequency, time), wanted in new.items():
            count, refusal = self._series.admit(
                message.sender, cluster, node, store.series, len(wanted)
            )
            if refusal is not None:
                refusals |= dict.fromkeys(wanted[count:], refusal)
            if count:
                store.add(wanted[:count], time, frequency)
                message.new_series += count
        return refusals


_NOT_ACCEPTED = SeriesRefusal(HTTPStatus.BAD_REQUEST, "the store does not accept this metric")
_MOST_NAMES = 10_000
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


def _key(line: bytes) -> bytes:
    """Return the text before the first blank."""
    return line.partition(b" ")[0]
