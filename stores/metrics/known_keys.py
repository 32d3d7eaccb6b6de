"""Known keys of lines, the order of repeated messages, and the values and times of plain lines."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Literal

import msgspec

from ccagent.stores.metrics.groups import ColumnRun, LoggedRuns
from ccagent.stores.metrics.line_keys import LAST_MICROSECOND, LAST_SECOND, NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccagent.stores.metrics.groups import StoredSeries

_FEWEST_ORDERS = 10_000
_KEYS_OF_ORDERS = 4
"""Maximum keys of all repeated messages per known key, beyond `_FEW_KEYS`."""

_FEW_KEYS = 100_000
_SHORTEST = 4
"""Minimum number of lines of a message whose order is remembered."""

_LONGEST_KEY = 2048
_WIDTH = 8
_EXACT = 2.0**63
"""Integers from here on may exceed 64 bits; the general decoder compares them exactly."""

_NO_BLANKS = bytes(range(33, 256))
_DIGITS = b"0123456789"
_DIGITS_AND_COMMAS = _DIGITS + b","
_SUFFIXED = {b"i", b"-i", b"u"}
"""Integers without their digits."""

_decode = msgspec.json.Decoder(list[float]).decode
_decode_integers = msgspec.json.Decoder(list[int]).decode


class RepeatedMessage(LoggedRuns):
    """The keys of a message that comes again and again, and the columns of their values."""

    __slots__ = ("begins", "pack", "size", "stored")

    def __init__(
        self, keys: list[bytes], series: Sequence[StoredSeries | Literal[False] | None]
    ) -> None:
        super().__init__(_find_runs(series))
        self.begins = [b"%b value=" % key for key in keys]
        """The text before the value in each line."""
        self.size = sum(map(len, self.begins))
        self.pack: Callable[..., bytes] = struct.Struct(f"<{len(keys)}d").pack
        self.stored = sum(run.end - run.begin for run in self.runs) // _WIDTH

    def parse(self, lines: list[bytes], size: int) -> list[float] | None:
        """Return the values of lines without times; None if they do not match.

        size: bytes of all lines.
        """
        text = b",".join(map(bytes.removeprefix, lines, self.begins))
        count = len(self.begins)
        # The sizes differ if a line has another start. JSON would permit blanks; explicit searches
        # take less time than a generator or `translate`.
        if len(text) - count + 1 != size - self.size or (
            b" " in text or b"\n" in text or b"\t" in text or b"\r" in text
        ):
            return None
        values = _parse_numbers(text)
        return values if values is not None and len(values) == count else None


class KnownKeys:
    """Series by key, and repeated messages, of messages with the same default cluster."""

    def __init__(self) -> None:
        self.series: dict[bytes, StoredSeries | Literal[False]] = {}
        """Series by key of a line; False: a metric that the store does not accept."""
        self._orders: dict[tuple[bytes, int], int] = {}
        """Hash of the keys of the last message, by its first key and number of lines.

        Inverted if its columns are too scattered for runs.
        """
        self._repeated: dict[bytes, dict[int, RepeatedMessage]] = {}
        self._keys = 0
        """Number of keys of all repeated messages."""

    def repeated(self, first: bytes) -> dict[int, RepeatedMessage] | None:
        """Return the repeated messages with this first key, by number of lines."""
        return self._repeated.get(first)

    def note_order(
        self, keys: list[bytes], series: Sequence[StoredSeries | Literal[False] | None]
    ) -> None:
        """Remember the order of a message. A second one makes it a repeated message.

        A sender with a random order needs no memory for its keys.
        """
        name, order = (keys[0], len(keys)), hash(tuple(keys))
        last = self._orders.get(name)
        if last == ~order:
            return
        if last != order:
            if len(self._orders) > _FEWEST_ORDERS + len(self.series):
                self._orders.clear()
            self._orders[name] = order
            return
        if self._keys > _KEYS_OF_ORDERS * len(self.series) + _FEW_KEYS:
            self._repeated.clear()
            self._keys = 0
        message = RepeatedMessage(keys, series)
        if len(keys) >= _SHORTEST and len(message.runs) <= len(keys) // 2:
            self._keys += len(keys)
            self._repeated.setdefault(keys[0], {})[len(keys)] = message
        else:
            self._orders[name] = ~order

    def remember(self, series: dict[bytes, StoredSeries | Literal[False]]) -> int:
        """Add the series of keys. Return the number of new keys.

        Long keys would need too much memory. The end of a key is not at an escaped blank.
        """
        before = len(self.series)
        self.series |= {
            key: one
            for key, one in series.items()
            if len(key) <= _LONGEST_KEY and not key.endswith(b"\\")
        }
        return len(self.series) - before


def split_lines(body: bytes) -> tuple[list[bytes], list[bytes], list[bytes]] | None:
    """Return the keys, values and times of lines of three words with single blanks, else None.

    A value is a word such as `value=1.5`.
    """
    words = body.split()
    count, rest = divmod(len(words), 3)
    blanks = body.translate(None, _NO_BLANKS)
    expected = b"  \n" * count
    if rest or not words or (blanks != expected and blanks != expected[:-1]):
        return None
    return words[0::3], words[1::3], words[2::3]


def parse_numbers(words: list[bytes]) -> list[float] | None:
    """Parse words such as `value=1.5` or `value=4i`; None unless all are plain numbers."""
    text = (b" " + b" ".join(words)).replace(b" value=", b",")[1:]
    numbers = None if b" " in text else _parse_numbers(text)
    return numbers if numbers is not None and len(numbers) == len(words) else None


def parse_values(words: list[bytes]) -> list[float | None]:
    """Parse words as `parse_numbers`; None for a word that is not a plain number."""
    numbers = parse_numbers(words)
    if numbers is not None:
        return [*numbers]
    if len(words) == 1:
        return [None]
    half = len(words) // 2
    return parse_values(words[:half]) + parse_values(words[half:])


def parse_times(texts: list[bytes]) -> list[int] | None:
    """Parse times of one unit as seconds; None for others than plain numbers in s or ns."""
    text = b",".join(texts)
    if text.translate(None, _DIGITS_AND_COMMAS):
        return None
    try:
        times = _decode_integers(b"[%b]" % text)
    except msgspec.DecodeError:
        return None
    if max(times) < LAST_SECOND:
        return times
    return [time // NANOSECONDS for time in times] if min(times) >= LAST_MICROSECOND else None


def _parse_numbers(text: bytes) -> list[float] | None:
    """Parse comma-separated numbers; None unless all are plain."""
    is_suffixed = b"i" in text or b"u" in text
    if is_suffixed:
        shapes = set(text.translate(None, _DIGITS).split(b","))
        if any((b"i" in one or b"u" in one) and one not in _SUFFIXED for one in shapes):
            return None
        text = (text + b",").replace(b"i,", b",").replace(b"u,", b",")[:-1]
    try:
        values = _decode(b"[%b]" % text)
    except msgspec.DecodeError:
        return None
    return None if is_suffixed and not -_EXACT < min(values) <= max(values) < _EXACT else values


def _find_runs(series: Sequence[StoredSeries | Literal[False] | None]) -> tuple[ColumnRun, ...]:
    runs: list[ColumnRun] = []
    for number, one in enumerate(series):
        if not one:
            continue
        begin = number * _WIDTH
        if runs:
            last = runs[-1]
            columns = (last.end - last.begin) // _WIDTH
            if last.group is one.group and last.end == begin and last.first + columns == one.column:
                runs[-1] = last._replace(end=begin + _WIDTH)
                continue
        runs.append(ColumnRun(one.group, one.column, begin, begin + _WIDTH))
    return tuple(runs)
