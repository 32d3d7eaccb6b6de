"""Ingest of lines: a fast path for plain lines of known series, and a general path.

1. A scanner finds the lines of three words (key, value, time) whose key is known, in any order and
   with any form of numbers and times (`known_keys`).
2. All other lines are decoded one by one (`general`). This path creates new series, and returns
   the reasons why lines are bad. The scanner refuses no lines.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from ccagent.senders import SenderTable
from ccagent.stores.metrics.general import GeneralIngest, LineMessage
from ccagent.stores.metrics.known_keys import make_scanner
from ccagent.stores.metrics.series_limits import PartLimits, SeriesLimits, SeriesRefusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccagent.records.line_protocol import Line
    from ccagent.stores.metrics.general import DecodedLines
    from ccagent.stores.metrics.known_keys import LineScanner, ValuePiece
    from ccagent.stores.metrics.log_writer import LoggedRun, WriteAheadLog
    from ccagent.stores.metrics.store import MetricStore

_MOST_CLUSTERS = 1000
_MOST_UNKNOWN = 100_000
_ANY = 10**12
PIECE = 640 << 10
"""Maximum bytes of a line, and those that are scanned at a time: in 1 to 5 ms."""

TOO_LONG_LINE = f"the line has more than {PIECE} bytes"

_LINES, _BYTES = 150, 16 << 10
"""Lines and bytes that the general path processes at a time, in about 5 ms."""

_LONG_STRING = re.compile(
    rb' (?:event|log|control|query)="[^"\\\n]*+(?:\\.[^"\\\n]*+)*+\n[^"\\]*+(?:\\.[^"\\]*+)*+"'
    rb"(?=[ \r\n]|\Z)",
    re.DOTALL,
)
"""A string of several lines, as in an event with indented JSON."""


class IngestCounters:
    """Counters since the start."""

    def __init__(self) -> None:
        self.points = 0
        self.bad_lines = 0
        self.messages = 0
        self.known = 0
        """Messages, and pieces of long ones, with plain lines of known series only."""


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
        self._known: dict[str, LineScanner] = {}
        """Known keys by the default cluster of their messages."""
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
        """Write a message of mostly known keys in a few ms. Return None for others."""
        if len(body) > PIECE:
            return None
        body = _join_strings(body)
        message = LineMessage(cluster, sender)
        if not self._write_known(body, message):
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
            piece = _join_strings(bytes(body[begin:end]))
            begin = end
            # `write_known` has tried the same with a message of one piece.
            if len(body) > PIECE and self._write_known(piece, message):
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

    def _write_known(self, body: bytes, message: LineMessage) -> bool:
        """Write the lines of known keys, then the others.

        Return False, and write nothing, for more than `_LINES` others, or if one of them may end
        the message.
        """
        if self._store.generation != self._generation:
            self._forget()
        now = int(self._store.now())
        low, high = now - self._past, now + self._future
        found = self._known_keys(message.cluster).scan(body, low, high, _LINES)
        if found is None:
            return False
        pieces, left, lines, stored, time = found
        if left and self._is_strict:
            return False
        self._put(pieces)
        self.counters.known += not left
        if left:
            self._remember(self.general.place(left, message), message)
        message.stored += stored
        message.lines += lines
        if time is not None:
            message.time = time
        return True

    def _write_part(self, part: bytes, message: LineMessage) -> bool:
        """Write a few lines. Return whether a bad line has ended the message."""
        if not self._write_known(part, message):
            self._remember(self.general.decode(enumerate(part.split(b"\n"), 1), message), message)
            message.lines += part.count(b"\n")
        return message.is_ended

    def _known_keys(self, cluster: str) -> LineScanner:
        known = self._known.get(cluster)
        if known is None:
            if len(self._known) >= _MOST_CLUSTERS:
                self._forget()
            known = self._known[cluster] = make_scanner()
        return known

    def _remember(self, decoded: DecodedLines, message: LineMessage) -> None:
        """Write the values of the general path, and remember the keys of their lines."""
        self._put(decoded.pieces)
        message.stored += decoded.stored
        if self._store.generation != self._generation:
            return
        known = self._known_keys(message.cluster)
        before = len(known)
        known.add_all(decoded.known)
        self._remembered += len(known) - before
        if self._remembered > 2 * self._store.series + _MOST_UNKNOWN:
            # The same series under many keys, or many metrics that are not stored.
            self._forget()

    def _forget(self) -> None:
        """Forget the keys of all messages."""
        self._generation = self._store.generation
        self._known.clear()
        self._remembered = 0

    def _put(self, pieces: list[ValuePiece]) -> None:
        """Write values into the rows of their groups, and log them."""
        pool, log = self._store.pool, self._log
        logged: dict[int, list[LoggedRun]] = {}
        for group, time, first, columns, values in pieces:
            if columns is None:
                group.write_run(pool, time, first, values)
            elif not columns:
                values = group.write_present(pool, time, first, values)  # noqa: PLW2901
            else:
                row = np.asarray(group.open_row(pool, time))
                row[np.frombuffer(columns, np.int64)] = np.frombuffer(values)
                if log is not None:
                    log.add_points(group, time, columns, values)
                continue
            logged.setdefault(time, []).append((group, first, values))
        if log is not None:
            for time, runs in logged.items():
                log.add_runs(time, runs)


def _join_strings(piece: bytes) -> bytes:
    """Return lines whose line breaks in strings are escaped. Each line is then decoded alone."""
    if b'"' not in piece:
        return piece
    return _LONG_STRING.sub(lambda found: found[0].replace(b"\n", rb"\n"), piece)


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
