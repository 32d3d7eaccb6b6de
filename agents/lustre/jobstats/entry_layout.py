"""Patterns of the lines of an entry, and of a whole entry.

All entries of a target have the same operations in the same order. So a pattern built from the
first entries matches any other entry at once.
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

# All quantifiers are possessive, so there is no backtracking. Group quantifiers are possessive only
# from Python 3.11.5: before, matching continues in the middle of a failed possessive group
# (gh-106052).
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
"""Any line: the eight groups of a stat, or a job id with its line end, or another line."""

_STATS = re.compile(rb"^" + _STAT, re.MULTILINE).findall
_HEAD = (
    # Most ids are printed unquoted, or in quotes without escapes.
    rb"- job_id:(?: {10}|[ \t]*+)(?:([ !#-\[\]-~][ -\[\]-~]*+)|\"([ !#-\[\]-~]*+)\"|([^\n]*+))\n"
    + _INDENTATION + rb"snapshot_time( *+)" + _SECONDS
)  # fmt: skip
TIME = re.compile(
    _INDENTATION + rb"(?:(snapshot|start)_time( *+)" + _SECONDS + rb"|elapsed_time *+:[^\n]*+\n)"
)
"""A time: its name, the spaces before the colon (only for times since boot), and seconds.

The elapsed time is not used. It is negative after a step of the server's clock.
"""

NUMBERS = 7
"""Number of values of a stat: samples, unit, min, max, sum, sumsq and hist."""


class Shape(NamedTuple):
    """The common shape of the entries of a target: start time or none, and operations."""

    has_start: bool
    operations: tuple[bytes, ...]


class EntryLayout:
    """Matches whole entries of one shape.

    Most operations have no samples: the pattern skips their lines. A second pattern reads the
    numbers of the other operations.
    """

    def __init__(self, shape: Shape) -> None:
        head = _HEAD
        if shape.has_start:
            head += _INDENTATION + rb"start_time *+" + _SECONDS
            head += _INDENTATION + rb"elapsed_time *+: [^\n]*+\n"
        # A character class instead of the lookbehind takes twice the time.
        stats = (
            _INDENTATION + re.escape(name)
            + rb": *+\{ samples: *+(?:0,[^\n]*+(?<=\})\n|([^\n]*+\n))"
            for name in shape.operations
        )  # fmt: skip
        self._match = re.compile(head + b"".join(stats)).match
        self._has_start = shape.has_start
        self.lines = (4 if shape.has_start else 2) + len(shape.operations)
        """Number of lines of an entry."""
        self._starts = [name + b": { samples: " for name in shape.operations]

    def take(
        self, text: bytes, position: int, end: int
    ) -> Generator[JobstatsEntry, None, tuple[int, int]]:
        """Yield entries from a position on, while they have the shape.

        Return the end position and the number of entries.
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
                break  # an operation is damaged
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
    """Return the layout of a shape. Building one takes milliseconds."""
    return EntryLayout(shape)


def is_escaped(snapshot: bytes, *, since_boot: bool) -> bool:
    """Return whether the server version with such times quotes ids with special characters."""
    return not since_boot and b"." in snapshot
