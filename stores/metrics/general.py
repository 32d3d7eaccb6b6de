"""The general path of ingest: each line is decoded separately by the line protocol decoder."""

from __future__ import annotations

import math
import re
import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple

from ccagent.records.line_protocol import LineError, decode_lines
from ccagent.stores.metrics.known_keys import NewRun, make_piece, split_runs
from ccagent.stores.metrics.line_keys import add_part, check_name, level_path, seconds
from ccagent.stores.metrics.series_limits import SeriesRefusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ccagent.records.line_protocol import Line
    from ccagent.stores.metrics.groups import Path, SeriesGroup, StoredSeries
    from ccagent.stores.metrics.known_keys import KnownRun, LeftRun, ValuePiece
    from ccagent.stores.metrics.series_limits import PartLimits, SeriesLimits
    from ccagent.stores.metrics.store import MetricStore

MOST_REPORTED = 100
"""Maximum number of bad lines in a response."""


class BadLine(NamedTuple):
    """A line that was not stored. number: from 1."""

    number: int
    reason: str


class DecodedLines(NamedTuple):
    """The values of a piece of a message. stored: their number."""

    pieces: list[ValuePiece]
    stored: int
    known: list[KnownRun]
    """Keys of the lines: the text before the first blank. None: a metric not accepted."""


class KnownName(NamedTuple):
    """A metric that lines name. frequency: its step. parts: tags that distinguish its series."""

    metric: str
    frequency: int
    parts: tuple[str, ...]


class _KnownNames(NamedTuple):
    """Different metrics of one step that lines name in turn, without parts."""

    metrics: tuple[str, ...]
    frequency: int
    distinct: frozenset[str]


class _LineLevel:
    """The level of lines, with its series by metric. new: metrics whose series must be made."""

    __slots__ = ("new", "path", "series")

    def __init__(self, path: Path, series: dict[str, StoredSeries]) -> None:
        self.path = path
        self.series = series
        self.new: set[str] = set()


_Point = tuple[int, _LineLevel, KnownName, int, float, bytes]
"""A value: number of its line, level, name, time, value and key."""


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
        self.levels: dict[bytes, tuple[_LineLevel, Mapping[str, str]]] = {}
        """Levels and tags by the text of the tags."""
        self.paths: dict[Path, _LineLevel] = {}
        self.new: dict[tuple[str, str, int, int], list[NewRun]] = {}
        """Series to make by cluster, node, step and time."""
        self.repeated: list[_Point] = []
        """Further values of series to make."""
        self.known: list[KnownRun] = []
        self._first: list[ValuePiece] = []
        """The first values of new series."""
        self._stored = 0
        """Number of the first values."""
        self._values: dict[tuple[SeriesGroup, int], tuple[array[int], array[float]]] = {}

    def put(self, series: StoredSeries, time: int, value: float, key: bytes) -> None:
        """Take a value of a series, and its key."""
        group, column = series
        piece = self._values.get((group, time))
        if piece is None:
            piece = self._values[group, time] = array("q"), array("d")
        piece[0].append(column)
        piece[1].append(value)
        self.known.append((key, b"", group, column))

    def put_new(self, run: NewRun, frequency: int, time: int) -> None:
        """Take the first values of series that must be made."""
        name = run.path[0], run.path[1], frequency, time
        self.new.setdefault(name, []).append(run)

    def put_first(self, place: tuple[SeriesGroup, int], time: int, runs: list[NewRun]) -> None:
        """Take the first values of made series, and their keys. place: group and first column."""
        group, first = place
        # Repeated values of the same time are in a later piece: the last one wins.
        self._first.append((group, time, first, None, b"".join([run.values for run in runs])))
        for run in runs:
            self.known.append((run.names, run.tags, group, first))
            first += len(run.metrics)
        self._stored += first - place[1]

    def end(self) -> DecodedLines:
        """Return all values."""
        later = [make_piece(*name, *piece) for name, piece in self._values.items()]
        stored = sum(len(columns) for columns, _ in self._values.values())
        return DecodedLines(self._first + later, self._stored + stored, self.known)


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
        self._runs: dict[bytes, _KnownNames] = {}
        """Names of runs of lines: a start of a cluster has the same ones for each node."""
        self._in_runs = 0
        """Number of names in `_runs`."""

    def decode(self, lines: Iterable[tuple[int, bytes]], message: LineMessage) -> DecodedLines:
        """Decode lines with their numbers. Skip bad lines; if `is_strict`, stop at the first."""
        decoding = _Decoding(message)
        self._parts.begin()
        for number, line in lines:
            if not self._decode_line(decoding, number, line) and self._is_strict:
                message.is_ended = True
                break
        return self._make_series(decoding)

    def place(self, runs: Sequence[LeftRun], message: LineMessage) -> DecodedLines:
        """Find or make the series of lines that the scanner has left. Decode those not plain."""
        decoding = _Decoding(message)
        self._parts.begin()
        for run in runs:
            before = run[-1]
            if before is not None:
                message.time = before
            if not self._place_run(decoding, run):
                self._place_lines(decoding, run)
        return self._make_series(decoding)

    def _place_run(self, decoding: _Decoding, run: LeftRun) -> bool:
        """Take the lines of new series of one level, step and time at once.

        Return False, and take none, for others. A start of a cluster makes millions of series.
        """
        number, _, names, tags, values, time, _ = run
        if time is None:
            return False
        named = self._runs.get(names) or self._learn_names(names)
        if named is None:
            return False
        found = decoding.levels.get(tags) or self._read_level(decoding, tags)
        if found is None:
            return False
        level, metrics = found[0], named.distinct
        if not (metrics.isdisjoint(level.series) and metrics.isdisjoint(level.new)):
            return False
        decoding.message.time = time
        level.new |= metrics
        new = NewRun(number, level.path, named.metrics, names, tags, values)
        decoding.put_new(new, named.frequency, time)
        return True

    def _place_lines(self, decoding: _Decoding, run: LeftRun) -> None:
        """Take each line of a run."""
        first, text, names, tags, values, time, _ = run
        if time is None:
            self._decode_line(decoding, first, text)
            return
        lines = zip(text.split(b"\n"), names.split(b"\n"), array("d", values), strict=True)
        for number, (line, name, value) in enumerate(lines, first):
            known = self._names.get(name)
            found = decoding.levels.get(tags) or self._read_level(decoding, tags)
            if known is None or found is None:
                self._decode_line(decoding, number, line)
                continue
            decoding.message.time = time
            point = number, found[0], known, time, value, name + tags
            self._take_value(decoding, point, found[1])

    def _learn_names(self, names: bytes) -> _KnownNames | None:
        """Return the metrics of a run of lines; None if its lines must be taken one by one."""
        found = [self._names.get(name) for name in names.split(b"\n")]
        known = [one for one in found if one is not None]
        metrics = tuple(one.metric for one in known)
        distinct = frozenset(metrics)
        if len(distinct) < len(found) or any(one.parts for one in known):
            return None
        frequency = known[0].frequency
        if any(one.frequency != frequency for one in known):
            return None
        self._in_runs += len(found)
        if self._in_runs > _MOST_NAMES:
            self._runs.clear()
            self._in_runs = len(found)
        learned = self._runs[names] = _KnownNames(metrics, frequency, distinct)
        return learned

    def _read_level(
        self, decoding: _Decoding, text: bytes
    ) -> tuple[_LineLevel, Mapping[str, str]] | None:
        """Return the level of tags without escapes; None if the decoder must read them."""
        if _PLAIN_TAGS.fullmatch(text) is None:
            return None
        pairs = [pair.partition("=") for pair in text[1:].decode("ascii").split(",")]
        tags = {key: value for key, _, value in pairs}
        if len(tags) < len(pairs):
            return None
        try:
            level = self._level(decoding, level_path(tags, decoding.message.cluster))
        except ValueError:
            return None
        decoding.levels[text] = level, tags
        return level, tags

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
            decoding.known.append((_key(stripped), b"", None, 0))
            return True
        try:
            self._take_line(decoding, number, line, known.frequency, _key(stripped))
        except ValueError as error:
            decoding.message.complain(number, str(error))
            return False
        return True

    def _take_line(
        self, decoding: _Decoding, number: int, line: Line, frequency: int, key: bytes
    ) -> None:
        """Take a value, and remember the name and tags in its key. Raise ValueError."""
        check_name(line.measurement)
        value = _number(line)
        path = level_path(line.tags, decoding.message.cluster)
        time = self._time(decoding.message, line)
        parts = self._store.catalogue.part_tags(line.measurement)
        known = KnownName(line.measurement, frequency, parts)
        level = self._level(decoding, path)
        if b"\\" not in key:  # an escaped comma is not the end of a name
            name = key.partition(b",")[0]
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[name] = known
            decoding.levels[key[len(name) :]] = level, line.tags
        self._take_value(decoding, (number, level, known, time, value, key), line.tags)

    def _take_value(self, decoding: _Decoding, point: _Point, tags: Mapping[str, str]) -> None:
        """Take a value, in the part of its level that the tags name."""
        number, level, name, time, value, key = point
        if name.parts:
            path = add_part(level.path, tags, name.parts)
            if path is not level.path:
                if not self._parts.admit(path):
                    # Not an error: a user could otherwise cause errors in the messages of a node.
                    decoding.known.append((key, b"", None, 0))
                    return
                level = self._level(decoding, path)
                point = number, level, name, time, value, key
        series = level.series.get(name.metric)
        if series is not None:
            decoding.put(series, time, value, key)
        elif name.metric in level.new:
            decoding.repeated.append(point)
        else:
            level.new.add(name.metric)
            packed = _FLOAT.pack(value)
            new = NewRun(number, level.path, (name.metric,), key, b"", packed)
            decoding.put_new(new, name.frequency, time)

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

    def _level(self, decoding: _Decoding, path: Path) -> _LineLevel:
        """Return the level of lines with a path."""
        level = decoding.paths.get(path)
        if level is None:
            level = decoding.paths[path] = _LineLevel(path, self._store.series_at(path))
        return level

    def _make_series(self, decoding: _Decoding) -> DecodedLines:
        """Make the missing series with their first times, and take their values.

        New series of one node, time and step become a group. Its columns have the order of the
        lines: a sum over components is fast if their columns are equidistant.
        """
        if not decoding.new:
            return decoding.end()
        store, message = self._store, decoding.message
        refusals: dict[tuple[Path, str], SeriesRefusal] = {}
        self._series.begin()
        for (cluster, node, frequency, time), new in decoding.new.items():
            wanted = sum([len(run.metrics) for run in new])
            count, refusal = self._series.admit(message.sender, cluster, node, store.series, wanted)
            runs = new
            if refusal is not None:
                runs, refused = split_runs(new, count)
                for run in refused:
                    for number, metric in enumerate(run.metrics, run.number):
                        refusals[run.path, metric] = refusal
                        message.refuse(number, refusal)
            if runs:
                made = [(run.path, run.metrics) for run in runs]
                place = store.place(made, time - frequency // 2, frequency)
                decoding.put_first(place, time, runs)
                message.new_series += count
        for number, level, name, time, value, key in decoding.repeated:
            series = self._store.series_at(level.path).get(name.metric)
            if series is None:
                message.refuse(number, refusals[level.path, name.metric])
            else:
                decoding.put(series, time, value, key)
        return decoding.end()


_FLOAT = struct.Struct("=d")
_MOST_NAMES = 10_000
_WORD = rb"[!-+\--<>-\[\]-~]++"
_PLAIN_TAGS = re.compile(rb"(?:,%b=%b){1,32}" % (_WORD, _WORD))
"""Up to 32 tags of printable ASCII without escapes, as the decoder reads them."""

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
