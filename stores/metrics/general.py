"""The general path of ingest: each line is decoded separately by the line protocol decoder."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, NamedTuple

from ccagent.records.line_protocol.decoding import decode_lines
from ccagent.records.line_protocol.lines import LineError
from ccagent.stores.metrics.line_keys import check_name, level_path
from ccagent.stores.metrics.line_times import seconds
from ccagent.stores.metrics.part_tags import add_part
from ccagent.stores.metrics.series_limits import SeriesRefusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.records.line_protocol.lines import Line
    from ccagent.stores.metrics.catalogue import StoredMetric
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
    found: dict[bytes, StoredSeries | Literal[False]]
    """Series by key, the text before the first blank; False: a metric that is not accepted."""


class PlainLine(NamedTuple):
    """A line of three words that the fast path leaves to the general one.

    number: of the line in the piece. value, time: None if the decoder must parse the word.
    """

    number: int
    key: bytes
    value_word: bytes
    time_word: bytes
    value: float | None
    time: int | None


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
    known: StoredMetric | None
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
        self.names: dict[bytes, KnownName] = {}

    def skip(self, key: bytes) -> None:
        """Record the key of a skipped line, unless the fast path would split it differently."""
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

    def decode(self, lines: Iterable[tuple[int, bytes]], message: LineMessage) -> DecodedLines:
        """Decode lines with their numbers. Skip bad lines; if `is_strict`, stop at the first."""
        decoding = _Decoding(message)
        self._parts.begin()
        for number, line in lines:
            if not self._decode_line(decoding, number, line) and self._is_strict:
                message.is_ended = True
                break
        return self._find_series(decoding)

    def place(self, lines: Iterable[PlainLine], message: LineMessage) -> DecodedLines:
        """Find or make the series of plain lines. Decode lines that are not plain after all."""
        decoding = _Decoding(message)
        self._parts.begin()
        for line in lines:
            if not self._place_line(decoding, line):
                text = b"%b %b %b" % (line.key, line.value_word, line.time_word)
                self._decode_line(decoding, line.number, text)
        return self._find_series(decoding)

    def _place_line(self, decoding: _Decoding, line: PlainLine) -> bool:
        """Take a line whose name and tags occurred before. Return False for others."""
        key, value, time = line.key, line.value, line.time
        name, _, tags = key.partition(b",")
        found, level = decoding.names.get(name), decoding.levels.get(tags)
        if found is None or level is None or value is None or time is None:
            return False
        if found.known is None:
            decoding.skip(key)
            return True
        self._add(
            decoding,
            DecodedPoint(line.number, level[0], found.metric, time, value, key),
            level[1],
            found,
        )
        return True

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
        key = _key(stripped)
        if known is None:
            decoding.skip(key)
            return True
        try:
            check_name(line.measurement)
            value = _number(line)
            level = level_path(line.tags, decoding.message.cluster)
            time = self._time(decoding.message, line)
        except ValueError as error:
            decoding.message.complain(number, str(error))
            return False
        name = KnownName(line.measurement, known, catalogue.part_tags(line.measurement))
        if b"\\" not in key:  # an escaped comma is not the end of a name
            measurement, _, tags = key.partition(b",")
            decoding.names[measurement] = name
            decoding.levels[tags] = level, line.tags
        self._add(
            decoding, DecodedPoint(number, level, name.metric, time, value, key), line.tags, name
        )
        return True

    def _add(
        self, decoding: _Decoding, point: DecodedPoint, tags: dict[str, str], name: KnownName
    ) -> None:
        """Add a value, in the part of its level that the tags name."""
        if name.parts:
            path = add_part(point.path, tags, name.parts)
            if path is not point.path and not self._parts.admit(path):
                # Not an error: a user could otherwise cause errors in the messages of a node.
                decoding.skip(point.key)
                return
            point = point._replace(path=path)
        decoding.points.append(point)

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
        """Find the series of the values. New series of one node, time and step become a group."""
        levels: dict[Path, dict[str, StoredSeries]] = {}
        missing: dict[tuple[Path, str], DecodedPoint] = {}
        for point in decoding.points:
            series = levels.get(point.path)
            if series is None:
                level = self._store.root.find(point.path)
                series = levels[point.path] = {} if level is None else level.series
            if point.metric not in series:
                missing.setdefault((point.path, point.metric), point)
        made = self._make_series(missing, decoding.message) if missing else {}
        points: list[tuple[StoredSeries, int, float]] = []
        found: dict[bytes, StoredSeries | Literal[False]] = {}
        for number, path, metric, time, value, key in decoding.points:
            one = levels[path].get(metric) or made[path, metric]
            if isinstance(one, SeriesRefusal):
                decoding.message.refuse(number, one)
                continue
            points.append((one, time, value))
            if _is_remembered(key):
                found[key] = one
        return DecodedLines(points, found | dict.fromkeys(decoding.skipped, False))

    def _make_series(
        self, missing: dict[tuple[Path, str], DecodedPoint], message: LineMessage
    ) -> dict[tuple[Path, str], StoredSeries | SeriesRefusal]:
        """Make the missing series. Return them, or why one is refused."""
        store = self._store
        new: dict[tuple[str, str, int, int], list[tuple[Path, str]]] = {}
        made: dict[tuple[Path, str], StoredSeries | SeriesRefusal] = {}
        self._series.begin()
        count = store.series
        for (path, metric), point in missing.items():
            refusal = self._series.admit(message.sender, path[0], path[1], count)
            known = store.catalogue.get(metric)
            if refusal is not None or known is None:
                made[path, metric] = refusal or _NOT_ACCEPTED
                continue
            count += 1
            group = new.setdefault((path[0], path[1], known.frequency, point.time), [])
            group.append((path, metric))
        for (_, _, frequency, time), wanted in new.items():
            for level, metric in store.add(wanted, time, frequency).columns:
                made[level.path, metric] = level.series[metric]
            message.new_series += len(wanted)
        return made


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
