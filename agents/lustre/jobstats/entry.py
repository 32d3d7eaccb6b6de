"""Items of the text of job_stats: targets, entries of job ids, and problems."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

FACTORS = {b"": 1, b"K": 1 << 10, b"M": 1 << 20, b"G": 1 << 30}
"""Multiples in the buckets of histograms."""

NOT_UNDERSTOOD = "can't be parsed"
BREAKS_OFF = "the text breaks off in this entry; entry skipped"
LACKS_TIME = "an entry without snapshot_time; entry skipped"
CONTRADICTS = "an entry has two lines of one operation; entry skipped"
LACKS_ID = "a line of an entry without job id; line skipped"
CUT = "the text breaks off"
ELSEWHERE = "is part of a job id or of a text that was not requested"


class Target(NamedTuple):
    """Start of the text of a target. kind: `mdt`, `obdfilter`, or empty if unknown."""

    name: str
    kind: str


class Problem(NamedTuple):
    """A part of the text that is not used.

    line: line number in the text. text: start of the line, or the id of its entry. hides_entries:
    other entries of the target may be missing in the text although they exist.
    """

    target: str
    line: int
    text: str
    reason: str = NOT_UNDERSTOOD
    hides_entries: bool = False


class OperationStat(NamedTuple):
    """The printed numbers of one operation; None for numbers that are not printed."""

    samples: int
    unit: str
    min: int | None = None
    max: int | None = None
    sum: int | None = None
    sumsq: int | None = None
    hist: str | None = None


class JobstatsEntry(msgspec.Struct, gc=False):
    """The operations of one job id on a target.

    job_id: canonical. snapshot, start: seconds as printed, empty if not printed. since_boot: times
    count from the server's boot (2.15.0 and 2.15.1), else from 1970. lines: name, samples, unit,
    min, max, sum, sumsq and hist of each operation, as printed, in the order of the text.
    Operations without samples are omitted unless requested. is_broken: the text of the entry is
    damaged; its numbers are unusable.
    """

    job_id: str
    snapshot: bytes = b""
    start: bytes = b""
    since_boot: bool = False
    lines: list[tuple[bytes, ...]] = []
    is_broken: bool = False

    @property
    def stats(self) -> dict[str, OperationStat]:
        """The numbers by operation."""
        return {line[0].decode("ascii", "replace"): parse_stat(line) for line in self.lines}


def parse_stat(line: tuple[bytes, ...]) -> OperationStat:
    """Return the numbers of an operation from the words of its line."""
    _, samples, unit, *numbers, hist = line[:8]
    low, high, total, squares = (int(word) if word else None for word in numbers)
    return OperationStat(
        int(samples),
        unit.decode("ascii", "replace"),
        low,
        high,
        total,
        squares,
        hist.decode("ascii", "replace").strip() if hist else None,
    )
