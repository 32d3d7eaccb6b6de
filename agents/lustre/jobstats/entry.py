"""Entries of job_stats: operations of one job id on a target."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


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
        """The numbers by operation; of a duplicate operation the last."""
        return {line[0].decode("ascii", "replace"): parse_stat(line) for line in self.lines}


def parse_stat(line: tuple[bytes, ...]) -> OperationStat:
    """Return the numbers of an operation from the words of its line."""
    _, samples, unit, low, high, total, squares, hist = line[:8]
    return OperationStat(
        int(samples),
        unit.decode("ascii", "replace"),
        int(low) if low else None,
        int(high) if high else None,
        int(total) if total else None,
        int(squares) if squares else None,
        hist.decode("ascii", "replace").strip() if hist else None,
    )
