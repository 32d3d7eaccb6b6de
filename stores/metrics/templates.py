"""Known keys of lines, and templates of messages that repeat keys in the same order."""

from __future__ import annotations

import re
import struct
from operator import methodcaller
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccagent.stores.metrics.groups import SeriesGroup, StoredSeries

_INTEGERS = re.compile(rb"(?<=,)(-?[0-9]{1,18})i(?=,)")
_MOST_KEYS = 4
"""Maximum template keys per known key, beyond the first `_FEW_KEYS`."""

_FEW_KEYS = 100_000
_MOST_MISSES = 5
_WIDTH = 8

_count_blanks = methodcaller("count", b" ")
_decode = msgspec.json.Decoder(list[float]).decode


class ColumnRun(NamedTuple):
    """Consecutive values of a message for consecutive columns of a group.

    first: column. begin, end: byte range in the packed values.
    """

    group: SeriesGroup
    first: int
    begin: int
    end: int


class MessageTemplate:
    """The keys of a message, and the columns of their values."""

    __slots__ = ("begins", "first", "has_integers", "header", "pack", "runs", "segment", "single",
                 "size", "stored")  # fmt: skip

    def __init__(self, keys: list[bytes], places: Sequence[StoredSeries | None]) -> None:
        self.begins = [b"%b value=" % key for key in keys]
        """The text before the value in each line."""
        self.size = sum(map(len, self.begins))
        self.pack: Callable[..., bytes] = struct.Struct(f"<{len(keys)}d").pack
        self.runs = _find_runs(places)
        self.stored = sum(run.end - run.begin for run in self.runs) // _WIDTH
        whole = (0, len(keys) * _WIDTH)
        is_single = len(self.runs) == 1 and self.runs[0][2:] == whole
        self.single = self.runs[0].group if is_single else None
        """The group of all values, if they are one run."""
        self.first = self.runs[0].first if self.runs else 0
        self.has_integers = False
        self.segment = -1
        """The log segment that describes all groups of the template."""
        self.header = b""
        """The runs in the log's encoding."""

    def parse(self, lines: list[bytes], size: int) -> list[float] | None:
        """Return the values of lines without times; None if they do not match the template.

        size: bytes of all lines.
        """
        text = b",".join(map(bytes.removeprefix, lines, self.begins))
        count = len(self.begins)
        # The sizes differ if a line has another start. JSON would permit blanks.
        if len(text) - count + 1 != size - self.size or _has_blanks(text):
            return None
        values = parse_numbers(text, self)
        return values if values is not None and len(values) == count else None


class KnownKeys:
    """Templates of messages with the same default cluster."""

    def __init__(self) -> None:
        self.series: dict[bytes, StoredSeries | None] = {}
        """Series by key of a line; None: a metric that the store does not accept."""
        self._templates: dict[tuple[bytes, int], MessageTemplate] = {}
        self._misses: dict[tuple[bytes, int], int] = {}
        self._keys = 0
        """Number of keys of all templates."""

    def template(self, first: bytes, lines: int) -> MessageTemplate | None:
        """Return the template of messages with this first key and number of lines."""
        return self._templates.get((first, lines))

    def learn(self, keys: list[bytes]) -> MessageTemplate | None:
        """Return a new template for a message; None unless all keys are known.

        A sender with a frequently changing order gets no template.
        """
        name = keys[0], len(keys)
        misses = self._misses.get(name, 0)
        if misses >= _MOST_MISSES:
            return None
        try:
            places = [self.series[key] for key in keys]
        except KeyError:
            return None
        if self._keys > _MOST_KEYS * len(self.series) + _FEW_KEYS:
            # Parts of one message can create many templates.
            self._templates.clear()
            self._misses.clear()
            self._keys = 0
        self._keys += len(keys)
        self._misses[name] = misses + 1
        template = MessageTemplate(keys, places)
        if len(template.runs) > len(keys) // 2:
            return None
        self._templates[name] = template
        return template

    def remember(self, found: dict[bytes, StoredSeries | None]) -> int:
        """Add the series of keys. Return the number of new keys."""
        before = len(self.series)
        for key, series in found.items():
            self.series.setdefault(key, series)
        return len(self.series) - before


def is_plain(body: bytes, count: int) -> bool:
    """Return whether a message has `count` lines of three words with single blanks."""
    # Explicit searches: a generator would take longer than the searches.
    if b"\t" in body or b"\r" in body or b"\v" in body or b"\f" in body:
        return False
    lines = body.split(b"\n")
    if not lines[-1]:
        del lines[-1]
    return len(lines) == count and set(map(_count_blanks, lines)) == {2}


def parse_values(parts: list[bytes]) -> list[float] | None:
    """Parse values such as `value=1.5`; None unless all are plain numbers."""
    text = (b" " + b" ".join(parts)).replace(b" value=", b",")[1:]
    return None if b" " in text else parse_numbers(text)


def parse_numbers(text: bytes, template: MessageTemplate | None = None) -> list[float] | None:
    """Parse comma-separated numbers; None unless all are plain. The template records integers."""
    if template is None or not template.has_integers:
        try:
            return _decode(b"[%b]" % text)
        except msgspec.DecodeError:
            pass
    try:
        values = _decode(b"[%b]" % _INTEGERS.sub(rb"\1", b",%b," % text)[1:-1])
    except msgspec.DecodeError:
        return None
    if template is not None:
        template.has_integers = True
    return values


def _has_blanks(text: bytes) -> bool:
    # Explicit searches: a generator would take longer than the searches.
    return b" " in text or b"\n" in text or b"\t" in text or b"\r" in text


def _find_runs(places: Sequence[StoredSeries | None]) -> tuple[ColumnRun, ...]:
    runs: list[ColumnRun] = []
    for number, place in enumerate(places):
        if place is None:
            continue
        begin = number * _WIDTH
        if runs:
            last = runs[-1]
            columns = (last.end - last.begin) // _WIDTH
            if (
                last.group is place.group
                and last.end == begin
                and last.first + columns == place.column
            ):
                runs[-1] = last._replace(end=begin + _WIDTH)
                continue
        runs.append(ColumnRun(place.group, place.column, begin, begin + _WIDTH))
    return tuple(runs)
