"""Scanner of lines whose keys are known: their series, values and times."""

from __future__ import annotations

import os
import re
from array import array
from math import isfinite, nan
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ccagent.stores.metrics.line_keys import seconds

if TYPE_CHECKING:
    from ccagent.stores.metrics.groups import Path, SeriesGroup

LONGEST_KEY = 2048
"""Maximum bytes of a key: long ones would need too much memory."""


MOST_SPARSE = 3
"""Columns for each value up to which values are in a run: in the log, others take three words."""

_WIDTH = 8

ValuePiece = tuple["SeriesGroup", int, int, bytes | None, bytes]
"""Values of one group and time: group, time in s, first column, columns, values.

The columns are int64, with which numpy indexes fastest. None: consecutive ones, from the first one
on. Empty: the same, but a value of NaN is none. The values are float64. Both are in the byte order
of the machine.
"""

LeftRun = tuple[int, bytes, bytes, bytes, bytes, int | None, int | None]
"""Lines for the general path: number of the first one in its message (from 1), lines, names, tags,
values, time, time before.

Plain lines in turn with the same tags and time are one run. The names are the parts of their keys
before the first comma, with line feeds between them. The tags are the rest of each key, from the
comma on. The values are float64. Any other line is a run without names, tags, values and time. The
time before is that of the line before, for lines without a time; None: as before that one.
"""

KnownRun = tuple[bytes, bytes, "SeriesGroup | None", int]
"""Keys of consecutive columns: names and tags as of a `LeftRun`, group, first column.

None: `value` lines with these keys are skipped.
"""


class NewRun(NamedTuple):
    """The first values of series of a level that must be made. number: of the first line.

    names, tags, values: as of a `LeftRun`.
    """

    number: int
    path: Path
    metrics: tuple[str, ...]
    names: bytes
    tags: bytes
    values: bytes

    def split(self, count: int) -> tuple[NewRun, NewRun]:
        """Return the first `count` series, and the others."""
        number, path, metrics, text, tags, values = self
        names, size = text.split(b"\n"), _WIDTH * count
        first, others = b"\n".join(names[:count]), b"\n".join(names[count:])
        return (
            NewRun(number, path, metrics[:count], first, tags, values[:size]),
            NewRun(number + count, path, metrics[count:], others, tags, values[size:]),
        )


def split_runs(runs: list[NewRun], count: int) -> tuple[list[NewRun], list[NewRun]]:
    """Return the runs of the first `count` series, and those of the others."""
    for n, run in enumerate(runs):
        if count < len(run.metrics):
            first, others = run.split(count)
            return [*runs[:n], *([first] if count else ())], [others, *runs[n + 1 :]]
        count -= len(run.metrics)
    return runs, []


ScannedLines = tuple[list[ValuePiece], list[LeftRun], int, int, int | None]
"""Values, lines that are left, number of lines and of values, and the time of the last line.

The time is None if the last line is left.
"""


class LineScanner(Protocol):
    """Known keys, and a search for lines with them.

    A plain line is KEY, `value=NUMBER` and TIME, with a blank between them. Plain lines of known
    keys are found in any order. All others are left: they may be right as well.
    """

    def __len__(self) -> int:
        """Return the number of known keys."""
        ...

    def add_all(self, runs: list[KnownRun], /) -> None:
        """Remember the group and column of keys.

        Long keys are not remembered, nor those whose last blank is escaped: they end elsewhere.
        """

    def scan(self, body: bytes, low: int, high: int, most: int, /) -> ScannedLines | None:
        """Scan lines with times from `low` to `high`. None: more than `most` lines are left."""


_PLAIN = re.compile(
    rb"""([^ #\n][^ \n]*)[ ]value=(?:
        ([0-9]{1,18})u | (-?[0-9]{1,18})i
        | (?=[^ ]{1,64}[ ])(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    )[ ]([0-9]{1,19})\r?""",
    re.VERBOSE,
)
_LATEST = 2**63 - 1


class _LeftLine(NamedTuple):
    """A line of a `LeftRun`."""

    number: int
    line: bytes
    key: bytes
    value: float
    time: int | None
    before: int | None

    @property
    def tags(self) -> bytes:
        """The key from its first comma on."""
        return self.key[len(self.key.partition(b",")[0]) :]


class PureScanner:
    """The scanner where no compiled one is built (`line_scanner.c`). It takes 20 times as long."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[SeriesGroup | None, int]] = {}

    def __len__(self) -> int:
        """Return the number of known keys."""
        return len(self._known)

    def add_all(self, runs: list[KnownRun], /) -> None:
        """Remember the series of keys."""
        for names, tags, group, first in runs:
            for column, name in enumerate(names.split(b"\n"), first):
                key = name + tags
                if 0 < len(key) <= LONGEST_KEY and not key.endswith(b"\\"):
                    self._known[key] = group, column

    def scan(self, body: bytes, low: int, high: int, most: int, /) -> ScannedLines | None:
        """Scan lines."""
        pieces: dict[tuple[SeriesGroup, int], tuple[array[int], array[float]]] = {}
        left: list[_LeftLine] = []
        stored, last = 0, None
        for number, line in enumerate(body.split(b"\n"), 1):
            if not line or line[:1] == b"#":
                continue
            key, _, rest = line.partition(b" ")
            known = self._known.get(key)
            if known and known[0] is None and rest.startswith(b"value="):
                continue
            key, value, time = _parse_plain(line, low, high)
            group, column = known or (None, 0)
            if group is None or time is None:
                if len(left) == most:
                    return None
                left.append(_LeftLine(number, line, key, value, time, last))
                last = None
                continue
            piece = pieces.get((group, time))
            if piece is None:
                piece = pieces[group, time] = array("q"), array("d")
            piece[0].append(column)
            piece[1].append(value)
            stored += 1
            last = time
        lines = body.count(b"\n") + (not body.endswith(b"\n") and body != b"")
        found = [make_piece(*name, *piece) for name, piece in pieces.items()]
        return found, _join_left(left), lines, stored, last


def _join_left(left: list[_LeftLine]) -> list[LeftRun]:
    """Return the runs of lines."""
    runs: list[list[_LeftLine]] = []
    for line in left:
        last = runs[-1][-1] if runs else None
        is_next = last is not None and line.key and line.number == last.number + 1
        if last is not None and is_next and (line.tags, line.time) == (last.tags, last.time):
            runs[-1].append(line)
        else:
            runs.append([line])
    return [
        (
            run[0].number, b"\n".join(line.line for line in run),
            b"\n".join(line.key.partition(b",")[0] for line in run), run[0].tags,
            array("d", [line.value for line in run if line.key]).tobytes(),
            run[0].time, run[0].before,
        )
        for run in runs
    ]  # fmt: skip


def _parse_plain(line: bytes, low: int, high: int) -> tuple[bytes, float, int | None]:
    """Return key, value and time of a line; without key and time if it is not plain."""
    found = _PLAIN.fullmatch(line)
    if found is not None:
        key, unsigned, signed, real, text = found.groups()
        value, time = float(unsigned or signed or real), int(text)
        if time <= _LATEST and isfinite(value) and low <= seconds(time) <= high:
            return key, value, seconds(time)
    return b"", 0.0, None


def make_piece(
    group: SeriesGroup, time: int, columns: array[int], values: array[float]
) -> ValuePiece:
    """Return the piece of a group's values at a time."""
    first, last = min(columns), max(columns)
    if columns == array("q", range(first, last + 1)):
        return group, time, first, None, values.tobytes()
    if last - first + 1 > MOST_SPARSE * len(columns):
        return group, time, first, columns.tobytes(), values.tobytes()
    run = array("d", [nan]) * (last - first + 1)
    for column, value in zip(columns, values, strict=True):
        run[column - first] = value
    return group, time, first, b"", run.tobytes()


def make_scanner() -> LineScanner:
    """Return the fastest scanner that is there."""
    try:
        from ccagent.stores.metrics.line_scanner import CompiledScanner
    except ImportError:
        return PureScanner()
    return CompiledScanner(os.urandom(16))
