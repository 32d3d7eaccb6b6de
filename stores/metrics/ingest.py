"""Ingest of lines: two fast paths for repeated messages and known series, and a general path.

1. A message with known keys in a known order and one time is written in runs of consecutive
   columns (`templates`).
2. A message with known keys in any order and any times is written value by value.
3. All other messages are decoded line by line (`general`). This path creates new series, and
   returns the reasons why lines are bad.

A fast path writes a whole message, or leaves it to the next path. Fast paths refuse no lines.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from ccagent.senders import SenderTable
from ccagent.stores.metrics.general import GeneralIngest, LineMessage
from ccagent.stores.metrics.line_times import seconds
from ccagent.stores.metrics.part_limits import PartLimits
from ccagent.stores.metrics.series_limits import SeriesLimits, SeriesRefusal
from ccagent.stores.metrics.templates import KnownKeys, MessageTemplate, is_plain, parse_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccagent.records.line_protocol.decoding import Line
    from ccagent.stores.metrics.groups import SeriesGroup
    from ccagent.stores.metrics.store import MetricStore

_MOST_CLUSTERS = 1000
_MOST_UNKNOWN = 100_000
_ANY = 10**12
PIECE = 640 << 10
"""Maximum bytes of a line, and those that a fast path processes at a time: in about 5 ms.

A template needs all lines of a message: the pieces of a longer message differ from time to time.
"""

TOO_LONG_LINE = f"the line has more than {PIECE} bytes"

_LINES, _BYTES = 150, 16 << 10
"""Lines and bytes that the general path processes at a time, in about 5 ms."""

_SHORTEST = 4
"""Minimum number of lines of a message with a template."""


class IngestLog(Protocol):
    """Persistent log of the values in memory."""

    def add_runs(self, template: MessageTemplate, time: int, packed: bytes) -> None:
        """Add values of a message that follows a template."""

    def add_points(self, points: list[tuple[SeriesGroup, int, int, float]]) -> None:
        """Add single values: group, column, time and value."""


class IngestCounters:
    """Counters since the start."""

    def __init__(self) -> None:
        self.points = 0
        self.bad_lines = 0
        self.messages = 0
        self.templates = 0
        """Messages that followed a template."""
        self.lookups = 0
        """Messages with known keys in another order or with several times."""


class LineIngest:
    """Writes lines into a store and its log.

    future, past: maximum seconds ahead of and behind the clock; past None: no limit. is_strict:
    stop at the first bad line, as the reference does. others: receives lines of events and their
    sender, and returns the reason if one is not stored. parts: limits of mounts and other parts.
    series: limits of new series.
    """

    def __init__(
        self,
        store: MetricStore,
        log: IngestLog | None = None,
        *,
        future: int = 3600,
        past: int | None = None,
        is_strict: bool = False,
        others: Callable[[Line, str], SeriesRefusal | str] | None = None,
        parts: PartLimits | None = None,
        series: SeriesLimits | None = None,
    ) -> None:
        self.counters = IngestCounters()
        self.senders = SenderTable()
        """Messages, bytes, new series and refused lines by sender."""
        self._turn = asyncio.Lock()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks by sender, of which one at a time gets the common turn."""
        self._store = store
        self._log = log
        self._future = future
        self._past = _ANY if past is None else past
        self._is_strict = is_strict
        self._generation = store.generation
        self._known: dict[str, KnownKeys] = {}
        self._remembered = 0
        """Number of keys in `_known`."""
        self.parts = parts or PartLimits(store)
        self.series = series or SeriesLimits(store)
        self.general = GeneralIngest(
            store, future=future, past=past, is_strict=is_strict, series=self.series,
            others=others, parts=self.parts,
        )  # fmt: skip

    def write(self, body: bytes, cluster: str = "", sender: str = "") -> LineMessage:
        """Write a whole message at once. cluster: default for lines without the tag `cluster`."""
        message = self.write_known(body, cluster, sender)
        if message is None:
            message = LineMessage(cluster, sender)
            for _ in self.write_pieces(body, message):
                pass
        return message

    def write_known(self, body: bytes, cluster: str = "", sender: str = "") -> LineMessage | None:
        """Write a message of known keys in a few ms. Return None for other and large messages."""
        if len(body) > PIECE:
            return None
        count = self._write_fast(body, cluster)
        if count is None:
            return None
        message = LineMessage(cluster, sender)
        message.stored = count
        self._count(body, message)
        return message

    async def write_in_turns(self, body: bytes | bytearray, message: LineMessage) -> None:
        """Write a message in pieces. Other work is done between pieces.

        Senders take turns, and the messages of a sender in its turns: many messages of a sender
        together delay others as little as one.
        """
        await self.take_turns(self.write_pieces(body, message), message.sender)

    async def take_turns(self, pieces: Iterator[object], sender: str) -> None:
        """Do the pieces of a sender's work in its turns."""
        of_sender = self._turns.setdefault(sender, asyncio.Lock())
        is_over = False
        while not is_over:
            async with of_sender, self._turn:
                is_over = next(pieces, None) is None
                # The turn lasts until the loop has done all other work that is ready.
                await asyncio.sleep(0)

    def write_pieces(self, body: bytes | bytearray, message: LineMessage) -> Iterator[LineMessage]:
        """Write a message in pieces of a few ms. Yield the message after each piece."""
        begin, is_ended = 0, False
        while begin < len(body) and not is_ended:
            end = len(body)
            if end - begin > PIECE:
                end = body.rfind(b"\n", begin, begin + PIECE + 1) + 1
            if not end:
                message.complain(1, TOO_LONG_LINE)
                message.lines += 1
                begin = body.find(b"\n", begin + PIECE) + 1 or len(body)
                is_ended = self._is_strict
                yield message
                continue
            piece = bytes(body[begin:end])
            begin = end
            # `write_known` has tried the fast paths for a message of one piece.
            was_tried = len(body) <= PIECE
            count = None if was_tried else self._write_fast(piece, message.cluster)
            if count is None:
                for part in _split(piece):
                    is_ended = self._write_any(part, message)
                    yield message
                    if is_ended:
                        break
                continue
            message.stored += count
            message.lines += piece.count(b"\n")
            message.time = self._time(piece.rstrip().rpartition(b" ")[2])
            yield message
        message.bad.sort()
        self._count(body, message)

    def _count(self, body: bytes | bytearray, message: LineMessage) -> None:
        """Count a written message."""
        counters = self.counters
        counters.messages += 1
        counters.points += message.stored
        counters.bad_lines += message.bad_count
        if message.sender:
            self.senders.count(message.sender, messages=1, bytes=len(body))
            if message.new_series:
                self.senders.count(message.sender, new_series=message.new_series)
            if message.bad_count:
                self.senders.count(message.sender, refused_lines=message.bad_count)

    def _write_fast(self, body: bytes, cluster: str) -> int | None:
        """Write a message on a fast path. Return the number of its values; None for others."""
        store = self._store
        if store.generation != self._generation:
            self._generation = store.generation
            self._forget()
        known = self._known_keys(cluster)
        count = self._write_repeated(known, body)
        return self._write_known(known, body) if count is None else count

    def _known_keys(self, cluster: str) -> KnownKeys:
        known = self._known.get(cluster)
        if known is None:
            if len(self._known) >= _MOST_CLUSTERS:
                self._forget()
            known = self._known[cluster] = KnownKeys()
        return known

    def _write_repeated(self, known: KnownKeys, body: bytes) -> int | None:
        """Write a message that follows a template, with one time. Return None for others."""
        if not body.endswith(b"\n"):
            body += b"\n"
        text = body[body.rfind(b" ") + 1 : -1]
        time = self._time(text)
        if time is None:
            return None
        end = b" %b\n" % text
        lines = body.split(end)
        count = len(lines) - 1
        template = known.template(lines[0].partition(b" ")[0], count)
        if template is None or lines[-1]:
            return None
        values = template.parse(lines, len(body) - count * len(end))
        return None if values is None else self._write_runs(template, time, values)

    def _write_known(self, known: KnownKeys, body: bytes) -> int | None:
        """Write a message of known keys. Return None for other messages."""
        parts = body.split()
        lines = len(parts) // 3
        if lines * 3 != len(parts) or not parts or not is_plain(body, lines):
            return None
        keys, times = parts[0::3], parts[2::3]
        values = parse_values(parts[1::3])
        if values is None or len(values) != lines:
            return None
        if lines >= _SHORTEST and times.count(times[0]) == lines:
            time = self._time(times[0])
            template = None if time is None else known.learn(keys)
            if time is not None and template is not None:
                return self._write_runs(template, time, values)
        return self._write_points(known, keys, values, times)

    def _write_runs(self, template: MessageTemplate, time: int, values: list[float]) -> int:
        self.counters.templates += 1
        packed = template.pack(*values)
        pool = self._store.pool
        if template.single is not None:
            template.single.write_run(pool, time, template.first, packed)
        else:
            view = memoryview(packed)
            for group, first, begin, end in template.runs:
                group.write_run(pool, time, first, view[begin:end])
        if self._log is not None:
            self._log.add_runs(template, time, packed)
        return template.stored

    def _write_points(
        self, known: KnownKeys, keys: list[bytes], values: list[float], times: list[bytes]
    ) -> int | None:
        points: list[tuple[SeriesGroup, int, int, float]] = []
        series = known.series
        text, time = b"", 0
        for key, value, written in zip(keys, values, times, strict=True):
            if key not in series:
                return None
            found = series[key]
            if written != text:
                read = self._time(written)
                if read is None:
                    return None
                text, time = written, read
            if found is not None:
                points.append((found[0], found[1], time, value))
        self.counters.lookups += 1
        self._put(points)
        return len(points)

    def _write_any(self, piece: bytes, message: LineMessage) -> bool:
        """Write a piece on the general path. Return whether a bad line has ended the message."""
        bad_count = message.bad_count
        taken = self.general.decode(piece, message)
        self._put([(s.group, s.column, time, value) for s, time, value in taken.points])
        if message.bad_count == bad_count and self._store.generation == self._generation:
            self._remembered += self._known_keys(message.cluster).remember(taken.found)
            if self._remembered > 2 * self._store.series + _MOST_UNKNOWN:
                # The same series under many keys, or many metrics that are not stored.
                self._forget()
        return message.is_ended

    def _forget(self) -> None:
        """Forget the keys of all messages."""
        self._known.clear()
        self._remembered = 0

    def _put(self, points: list[tuple[SeriesGroup, int, int, float]]) -> None:
        pool = self._store.pool
        for group, column, time, value in points:
            group.write_value(pool, time, column, value)
        if self._log is not None and points:
            self._log.add_points(points)

    def _time(self, text: bytes) -> int | None:
        """Parse a time; None if the general path must do it."""
        if not text.isdigit() or len(text) > 19:
            return None
        time = seconds(int(text))
        now = self._store.now()
        return time if now - self._past <= time <= now + self._future else None


def _split(piece: bytes) -> Iterator[bytes]:
    """Yield parts of at most `_LINES` lines and about `_BYTES` bytes."""
    begin = 0
    while begin < len(piece):
        end, lines, latest = begin, 0, begin + _BYTES
        while lines < _LINES and end < len(piece) and (end < latest or end == begin):
            end = piece.find(b"\n", end) + 1 or len(piece)
            lines += 1
        yield piece[begin:end]
        begin = end
