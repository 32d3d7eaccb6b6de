"""Ingest of lines: a fast path for plain lines of known series, and a general path.

1. A line of three words (key, value, time) whose key is known is written by the hash of its key,
   in any order and with any form of numbers and times (`known_keys`). A message that repeats the
   keys of an earlier one, with one time, is written in runs of consecutive columns.
2. All other lines are decoded one by one (`general`). This path creates new series, and returns
   the reasons why lines are bad. The fast path refuses no lines.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, cast
from weakref import WeakValueDictionary

from ccagent.senders import SenderTable
from ccagent.stores.metrics.general import GeneralIngest, LineMessage, PlainLines
from ccagent.stores.metrics.known_keys import (
    KnownKeys,
    RepeatedMessage,
    parse_numbers,
    parse_times,
    parse_values,
    split_lines,
)
from ccagent.stores.metrics.line_keys import seconds
from ccagent.stores.metrics.series_limits import PartLimits, SeriesLimits, SeriesRefusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ccagent.records.line_protocol.decoding import Line
    from ccagent.stores.metrics.general import DecodedLines
    from ccagent.stores.metrics.groups import Row, SeriesGroup, StoredSeries
    from ccagent.stores.metrics.log_writer import WriteAheadLog
    from ccagent.stores.metrics.store import MetricStore

_MOST_CLUSTERS = 1000
_MOST_UNKNOWN = 100_000
_ANY = 10**12
PIECE = 640 << 10
"""Maximum bytes of a line, and those that the fast path processes at a time: in about 5 ms.

The order of a message is known for all its lines: the pieces of a longer one differ from time to
time.
"""

TOO_LONG_LINE = f"the line has more than {PIECE} bytes"

_LINES, _BYTES = 150, 16 << 10
"""Lines and bytes that the general path processes at a time, in about 5 ms."""

_POINT_BYTES = 24
"""Bytes of a single value in the log."""


class IngestCounters:
    """Counters since the start."""

    def __init__(self) -> None:
        self.points = 0
        self.bad_lines = 0
        self.messages = 0
        self.templates = 0
        """Messages with the keys of an earlier one, in the same order, at one time."""
        self.lookups = 0
        """Messages whose series were found by the keys of their lines."""


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
        log: WriteAheadLog | None = None,
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
        """Write a message of plain lines in a few ms. Return None for other and large messages."""
        if len(body) > PIECE:
            return None
        message = LineMessage(cluster, sender)
        if not self._write_fast(body, message):
            return None
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
            # `write_known` has tried the fast path for a message of one piece.
            if len(body) > PIECE and self._write_fast(piece, message):
                yield message
                continue
            for part in _split(piece):
                is_ended = self._write_part(part, message)
                yield message
                if is_ended:
                    break
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

    def _write_fast(self, body: bytes, message: LineMessage) -> bool:
        """Write a message of mostly known keys. Return False for others, and write nothing."""
        if self._store.generation != self._generation:
            self._forget()
        if b"\r" in body:
            body = body.replace(b"\r\n", b"\n")
        known = self._known_keys(message.cluster)
        return self._write_repeated(known, body, message) or self._write_plain(known, body, message)

    def _write_part(self, part: bytes, message: LineMessage) -> bool:
        """Write a few lines. Return whether a bad line has ended the message."""
        if self._store.generation != self._generation:
            self._forget()
        plain = part.replace(b"\r\n", b"\n") if b"\r" in part else part
        known = self._known_keys(message.cluster)
        if not self._write_plain(known, plain, message):
            self._decode(enumerate(part.split(b"\n"), 1), message)
            message.lines += part.count(b"\n")
        return message.is_ended

    def _known_keys(self, cluster: str) -> KnownKeys:
        known = self._known.get(cluster)
        if known is None:
            if len(self._known) >= _MOST_CLUSTERS:
                self._forget()
            known = self._known[cluster] = KnownKeys()
        return known

    def _write_repeated(self, known: KnownKeys, body: bytes, message: LineMessage) -> bool:
        """Write a message in a known order, with one time. Return False for others."""
        messages = known.repeated(body[: body.find(b" ")])
        if messages is None:
            return False
        if not body.endswith(b"\n"):
            body += b"\n"
        text = body[body.rfind(b" ") + 1 : -1]
        time = self._time(text)
        if time is None:
            return False
        end = b" %b\n" % text
        lines = body.split(end)
        count = len(lines) - 1
        repeated = messages.get(count)
        if repeated is None or lines[-1]:
            return False
        values = repeated.parse(lines, len(body) - count * len(end))
        if values is None:
            return False
        self.counters.templates += 1
        self._put_runs(repeated, time, values)
        message.stored += repeated.stored
        message.lines += count
        message.time = time
        return True

    def _write_plain(self, known: KnownKeys, body: bytes, message: LineMessage) -> bool:
        """Write lines of three words in any order.

        Return False, and write nothing, for other lines, and for more than `_LINES` lines that the
        general path must process.
        """
        words = split_lines(body)
        if words is None:
            return False
        keys, values, times = words
        series = cast(
            "list[StoredSeries | Literal[False] | None]", list(map(known.series.get, keys))
        )
        numbers, moments = parse_numbers(values), self._times(times)
        if numbers is None and len(keys) > _LINES:
            return False  # the search for the others would take too long
        if numbers is None or None in moments or not all(series):
            parsed: list[float | None] = parse_values(values) if numbers is None else [*numbers]
            lines = PlainLines(keys, values, times, parsed, moments)
            return self._write_mixed(known, lines, series, message)
        self.counters.lookups += 1
        if moments.count(moments[0]) == len(moments):
            known.note_order(keys, series)
        self._put(cast("list[StoredSeries]", series), numbers, cast("list[int]", moments))
        self._end(message, len(keys), len(keys), moments[-1])
        return True

    def _write_mixed(
        self,
        known: KnownKeys,
        lines: PlainLines,
        series: list[StoredSeries | Literal[False] | None],
        message: LineMessage,
    ) -> bool:
        """Write the lines of known keys, and process the others. Return False as `_write_plain`."""
        numbers, moments = lines.numbers, lines.moments
        is_parsed = [a is not None and b is not None for a, b in zip(numbers, moments, strict=True)]
        known_lines = list(zip(series, is_parsed, strict=True))
        others = [n for n, (one, ok) in enumerate(known_lines) if one is None or (one and not ok)]
        if len(others) > _LINES or (others and self._is_strict):
            return False
        taken = [n for n, (one, ok) in enumerate(known_lines) if one and ok]
        if taken:
            self._put(
                cast("list[StoredSeries]", [series[n] for n in taken]),
                cast("list[float]", [numbers[n] for n in taken]),
                cast("list[int]", [moments[n] for n in taken]),
            )
        if others:
            self._remember(self.general.place(lines, others, message), message)
        elif moments.count(moments[0]) == len(moments):
            known.note_order(lines.keys, series)
        self.counters.lookups += not others
        self._end(message, len(series), len(taken), moments[-1])
        return True

    @staticmethod
    def _end(message: LineMessage, lines: int, stored: int, time: int | None) -> None:
        """Count the lines of a piece. time: of its last line."""
        message.stored += stored
        message.lines += lines
        if time is not None:
            message.time = time

    def _decode(self, lines: Iterable[tuple[int, bytes]], message: LineMessage) -> None:
        """Write lines on the general path."""
        self._remember(self.general.decode(lines, message), message)

    def _remember(self, decoded: DecodedLines, message: LineMessage) -> None:
        """Write the values of the general path, and remember the keys of their lines."""
        message.stored += len(decoded.points)
        if decoded.points:
            series, times, values = zip(*decoded.points, strict=True)
            self._put(series, values, times)
        if self._store.generation == self._generation:
            self._remembered += self._known_keys(message.cluster).remember(decoded.found)
            if self._remembered > 2 * self._store.series + _MOST_UNKNOWN:
                # The same series under many keys, or many metrics that are not stored.
                self._forget()

    def _forget(self) -> None:
        """Forget the keys of all messages."""
        self._generation = self._store.generation
        self._known.clear()
        self._remembered = 0

    def _put_runs(self, repeated: RepeatedMessage, time: int, values: list[float]) -> None:
        """Write the values of a repeated message."""
        packed = repeated.pack(*values)
        pool, view = self._store.pool, memoryview(packed)
        for group, first, begin, end in repeated.runs:
            group.write_run(pool, time, first, view[begin:end])
        if self._log is not None:
            self._log.add_runs(repeated, time, packed)

    def _put(
        self, series: Sequence[StoredSeries], values: Sequence[float], times: Sequence[int]
    ) -> None:
        """Write single values into the rows of their groups."""
        pool = self._store.pool
        times_rows: dict[int, dict[SeriesGroup, Row]] = {}
        rows: dict[SeriesGroup, Row] = {}
        row: Row | None = None
        last, time = None, None
        for (group, column), value, written in zip(series, values, times, strict=True):
            if written != time:
                last, time = None, written
                rows = times_rows.setdefault(written, {})
            if group is not last or row is None:
                last, row = group, rows.get(group)
                if row is None:
                    row = rows[group] = group.open_row(pool, written)
            row[column] = value
        if self._log is not None:
            self._log_rows(self._log, times_rows, series, values, times)

    @staticmethod
    def _log_rows(
        log: WriteAheadLog,
        times_rows: dict[int, dict[SeriesGroup, Row]],
        series: Sequence[StoredSeries],
        values: Sequence[float],
        times: Sequence[int],
    ) -> None:
        """Log whole rows as they are now, or single values where these are smaller."""
        size = sum(group.stride for rows in times_rows.values() for group in rows)
        if size > _POINT_BYTES * len(values):
            log.add_points([
                (group, column, time, value)
                for (group, column), value, time in zip(series, values, times, strict=True)
            ])  # fmt: skip
            return
        for time, rows in times_rows.items():
            for group, row in rows.items():
                log.add_runs(group.logged, time, row.tobytes())

    def _times(self, texts: list[bytes]) -> list[int | None]:
        """Parse times; None for those that the general path must parse."""
        first = texts[0]
        if texts.count(first) == len(texts):
            return [self._time(first)] * len(texts)
        moments = parse_times(texts)
        now = self._store.now()
        if moments and now - self._past <= min(moments) and max(moments) <= now + self._future:
            return [*moments]
        return list(map({text: self._time(text) for text in set(texts)}.__getitem__, texts))

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
