"""Patterns of the lines of an entry, and of a whole entry.

All operations of a target stand in each of its entries, in the same order. So a pattern made from
the first entries takes any other one at once, and checks that none of its lines is missing.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from itertools import compress
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.lustre.jobstats.entry import JobstatsEntry
from ccagent.agents.lustre.jobstats.entry_id import canonical

if TYPE_CHECKING:
    from collections.abc import Generator

# All quantifiers are possessive, so nothing is tried twice; those of groups only where Python
# can: before 3.11.5 it goes on in the middle of a possessive group that has failed (gh-106052).
_POSSESSIVE = b"+" if sys.version_info >= (3, 11, 5) else b""
_NUMBER = rb"(\d{1,20}+)"
_NUMBERS = (
    _NUMBER + rb", unit: *+(\w{1,16}+)"
    rb"(?:, min: *+" + _NUMBER + rb", max: *+" + _NUMBER + rb", sum: *+" + _NUMBER +
    rb"(?:, sumsq: *+" + _NUMBER + rb")?" + _POSSESSIVE + rb")?" + _POSSESSIVE +
    rb"(?:, hist: \{([\w:, ]*+)\})?" + _POSSESSIVE + rb" *+\}[ \r]*+"
)  # fmt: skip
_INDENTATION = rb"[ \t]*+"
_STAT = _INDENTATION + rb"([\w.]{1,64}+): *+\{ samples: *+" + _NUMBERS + rb"\n"
_JOB_ID = _INDENTATION + rb"- job_id:(?: {10}|[ \t]*+)([^\n]*+)\n"
_SECONDS = rb": *+([\d.]{1,41}+)(?: secs\.nsecs)?[ \r]*+\n"

LINES = re.compile(
    rb"(?:" + _STAT + rb"|" + _JOB_ID.replace(rb")\n", rb"\n)") + rb"|([^\n]*+\n)|\Z)"
)
"""Any line: the eight groups of a stat, or a job id with its line's end, or another line."""

STAT = re.compile(_STAT)
_STATS = re.compile(rb"^" + _STAT, re.MULTILINE).findall
_HEAD = (
    # Most ids are printed as they are, or in quotes without escapes.
    rb"- job_id:(?: {10}|[ \t]*+)(?:([ !#-\[\]-~][ -\[\]-~]*+)|\"([ !#-\[\]-~]*+)\"|([^\n]*+))\n"
    + _INDENTATION + rb"snapshot_time( *+)" + _SECONDS
)  # fmt: skip
TIME = re.compile(_INDENTATION + rb"(snapshot|start|elapsed)_time( *+)" + _SECONDS)
"""A time: which, the spaces before its colon, which are those of times since boot, and seconds."""

NUMBERS = 7
"""Of a stat without its name: samples, unit, min, max, sum, sumsq and hist."""


class Shape(NamedTuple):
    """The shape that all entries of a target share: start time or none, and operations."""

    has_start: bool
    operations: tuple[bytes, ...]


class EntryLayout:
    """Takes whole entries of one shape.

    Most operations have never been done: the pattern skips their lines, and leaves the numbers of
    others to a second one.
    """

    def __init__(self, shape: Shape) -> None:
        head = _HEAD
        if shape.has_start:
            head += _INDENTATION + rb"start_time *+" + _SECONDS
            head += _INDENTATION + rb"elapsed_time *+: [^\n]*+\n"
        # A set of characters instead of the look behind would take twice the time.
        stats = (
            _INDENTATION + re.escape(name)
            + rb": *+\{ samples: *+(?:0,[^\n]*+(?<=\})\n|([^\n]*+\n))"
            for name in shape.operations
        )  # fmt: skip
        self._match = re.compile(head + b"".join(stats)).match
        self._has_start = shape.has_start
        self.lines = (4 if shape.has_start else 2) + len(shape.operations)
        """How many lines an entry has."""
        self._starts = [name + b": { samples: " for name in shape.operations]

    def take(
        self, text: bytes, position: int, end: int
    ) -> Generator[JobstatsEntry, None, tuple[int, int]]:
        """Yield entries from a position on, as many as have the shape.

        Return where they end, and their number.
        """
        number = 0
        match, starts, has_start = self._match, self._starts, self._has_start
        first = 6 if has_start else 5
        start = b""
        while (found := match(text, position, end)) is not None:
            groups = found.groups()
            plain, quoted, raw, since_boot, snapshot = groups[:5]
            if has_start:
                start = groups[5]
            stats = groups[first:]
            done = [*map(add, compress(starts, stats), filter(None, stats))]
            lines = _STATS(b"".join(done))
            if len(lines) != len(done):
                break  # one of them is damaged
            if plain is not None:
                job_id = plain.decode("ascii")
            elif quoted is not None and not since_boot and b"." in snapshot:
                job_id = quoted.decode("ascii")
            else:
                job_id = canonical(
                    b'"%b"' % quoted if raw is None else raw,
                    is_escaped=is_escaped(snapshot, since_boot=since_boot != b""),
                )
            yield JobstatsEntry(job_id, snapshot, start, since_boot != b"", lines)
            position = found.end()
            number += 1
        return position, number


@lru_cache(maxsize=16)
def entry_layout(shape: Shape) -> EntryLayout:
    """Return the layout of a shape; making one takes milliseconds."""
    return EntryLayout(shape)


def is_escaped(snapshot: bytes, *, since_boot: bool) -> bool:
    """Return whether the version that prints such times quotes ids with odd characters."""
    return not since_boot and b"." in snapshot
