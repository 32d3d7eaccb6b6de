"""State of the entries of each target, to detect starts and resets of series, and kept totals."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from ccagent.agents.base import read_state, write_state
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.agents.lustre.jobstats.entry import JobstatsEntry


class KeptTotal(msgspec.Struct, array_like=True):
    """stype, stype_id: scope. seen: seconds since 1970. counters: by metric, as MessagePack."""

    stype: str
    stype_id: str
    seen: float
    counters: bytes


Reset = Literal["start_time", "absent", "decreased", "snapshot_gap"]
"""Reason for a reset of an entry's counters; `snapshot_gap`: a possible reset."""

_VERSION = 1
_LARGEST_FILE = 1024**3
_WORDS = 5
_DAY = 86400.0
_SHORTEST = 0.001
"""Resolution of times in records, in seconds."""

_MAY_RUN_OVER = 2**63
_REMEMBERED = itemgetter(0, 1, 2, 5, 6)
"""Kept fields of a line: operation, samples, unit, sum, sum of squares."""

_BYTES = {b"read": b"read_bytes", b"write": b"write_bytes"}
"""Lustre 2.5 counts bytes under names that count requests in later versions."""


class OperationCounters(NamedTuple):
    """Counters of one operation, as printed: samples, sum and sum of squares."""

    samples: int
    sum: int
    sumsq: int


class Seen(NamedTuple):
    """An entry compared with the previous observation.

    begins_after: seconds since 1970 of the last complete observation, which lacked the entry; None
    if the series continues or no earlier observation exists.
    since: deltas of the operations; full values if the entry started after the previous observation
    or no earlier observation exists.
    """

    begins_after: float | None
    reset: Reset | None
    since: dict[str, OperationCounters]


_GOES_ON = Seen(None, None, {})


class _Target(msgspec.Struct):
    """State of a target.

    departed: entries that disappeared less than a day ago. departed_before: less than two days ago.
    is_away: the last complete observation did not find the target on this server.
    """

    observed: float = 0.0
    entries: dict[str, bytes] = {}
    departed: dict[str, bytes] = {}
    departed_before: dict[str, bytes] = {}
    rotated: float = 0.0
    system: dict[str, int] = {}
    is_away: bool = False


class _SeriesFile(msgspec.Struct):
    version: int
    listed: float
    targets: dict[str, _Target]
    totals: list[KeptTotal] = []


class Series:
    """The entries of the last observation, by target; kept across restarts with a `path`.

    An observation is `begin`, then for each target `begin_target`, `see` for its entries and
    `end_target`, and `end`. At most `limit` entries are kept, including disappeared ones.
    """

    def __init__(self, path: str, limit: int, cleanup_interval: float) -> None:
        self._path = path
        self._limit = limit
        self._interval = cleanup_interval
        self._listed = 0.0
        self._targets: dict[str, _Target] = {}
        self._now = 0.0
        self._seen: set[str] = set()
        self._target = _Target()
        self._entries: dict[str, bytes] = {}
        self._broken: set[str] = set()
        self._has_arrived = False
        self._is_resumed = False
        self._boot_time: Callable[[], float] = float
        self._size = 0
        self.totals: list[KeptTotal] = []
        """Counters of points, kept in the same file."""
        self.forgets = False
        """True if no later observation follows."""
        if path:
            self._load()

    def begin(self, now: float, boot_time: Callable[[], float] = float) -> None:
        """Start an observation at `now` (seconds since 1970). boot_time: returns the server's."""
        self._now = now
        self._boot_time = boot_time
        self._seen = set()
        self._size = 0

    def begin_target(self, name: str) -> None:
        """Start or continue a target: entries belong to it until `end_target`."""
        target = self._targets.get(name)
        if target is None:
            target = self._targets[name] = _Target(
                entries={}, departed={}, departed_before={}, rotated=self._now, system={}
            )
            target.is_away = True
        self._is_resumed = name in self._seen
        self._has_arrived = target.is_away
        self._seen.add(name)
        target.is_away = False
        self._target = target
        self._entries = target.entries if self._is_resumed else {}
        self._broken = set()

    @property
    def system(self) -> dict[str, int]:
        """Counters of the target's aggregated entries."""
        return self._target.system

    def see(self, entry: JobstatsEntry, *, wants_growth: bool) -> Seen | None:
        """Compare an entry with its previous state, and keep the new state.

        Return None for a repeated entry in this observation. wants_growth: False leaves `since`
        empty.
        """
        key = entry.job_id
        if key in self._entries and key not in self._broken:
            return None
        if entry.is_broken:
            self._see_broken(key)
            return _GOES_ON
        self._broken.discard(key)
        if self.forgets and not wants_growth:
            self._entries[key] = b""
            return _GOES_ON
        old = self._target.entries.get(key)
        words = [entry.snapshot, entry.start]
        for line in map(_REMEMBERED, entry.lines):
            words += line
        new = b" ".join(words)
        self._entries[key] = new
        if old == new:
            return _GOES_ON
        if old:
            return self._compare(old, new, wants_growth=wants_growth)
        if old is None:
            return self._see_new(entry, new, wants_growth=wants_growth)
        return Seen(None, None, _counters(new) if wants_growth else {})

    def _see_broken(self, key: str) -> None:
        """Note a broken entry. If it is new, its next reading starts the series."""
        old = self._target.entries.get(key)
        self._broken.add(key)
        if old is not None:
            self._entries[key] = old
        elif not (self._target.observed or self._listed):
            self._entries[key] = b""

    def _see_new(self, entry: JobstatsEntry, new: bytes, *, wants_growth: bool) -> Seen:
        """Return the comparison for an entry that the last observation lacked."""
        target, key = self._target, entry.job_id
        gone = target.departed.pop(key, None)
        if gone is None:
            gone = target.departed_before.pop(key, None)
        if gone and (self._is_resumed or self._was_skipped(gone, new)):
            return self._compare(gone, new, wants_growth=wants_growth)
        growth = _counters(new) if wants_growth else {}
        before = target.observed or (self._listed if gone is None else 0.0)
        reset: Reset | None = None if gone is None else "absent"
        return Seen(self._start_of(entry, before) if before else None, reset, growth)

    def _was_skipped(self, gone: bytes, new: bytes) -> bool:
        """Return whether the last reading missed an entry that existed all the time.

        The kernel walks a list that changes meanwhile. Without a start time, the entry existed if
        its last operation was before that reading.
        """
        old_start = gone.split(b" ", 2)[1]
        snapshot, start = new.split(b" ", 2)[:2]
        if start or old_start:
            return start == old_start
        if gone == new:
            return True
        before, after = _counters(gone), _counters(new)
        last_use = _seconds(gone.split(b" ", 1)[0])
        return last_use < _seconds(snapshot) <= self._target.observed - 1 and not any(
            _is_less(after.get(name), counters) for name, counters in before.items()
        )

    def _start_of(self, entry: JobstatsEntry, observed: float) -> float:
        """Return the time of the zero record at the start of a series.

        This is the time of the last observation. If the target was on another server then, that
        server may have sent records of an equal entry: use the entry's start time if later.
        """
        if not self._has_arrived:
            return observed
        boot = self._boot_time() if entry.since_boot else 0.0
        first_use = _seconds(entry.start) if entry.start else _seconds(entry.snapshot) + 1
        return max(observed, min(boot + first_use, self._now - _SHORTEST))

    def end_target(self, *, complete: bool) -> None:
        """End a target. Entries missing in a complete reading have disappeared."""
        target = self._target
        if self.forgets and not self._path:
            self._entries = {}
            return
        if complete:
            if self._now - target.rotated > _DAY:
                target.departed_before, target.departed = target.departed, {}
                target.rotated = self._now
            for key, old in target.entries.items():
                if key not in self._entries:
                    target.departed[key] = old
            target.entries = self._entries
            target.observed = self._now
        else:
            target.entries.update(self._entries)
        self._size += len(target.entries) + len(target.departed) + len(target.departed_before)
        if self._size > self._limit:
            self._forget(target)
        self._entries = {}

    def end(self, *, complete: bool) -> None:
        """End the observation. complete: missing targets are not on this server."""
        if complete:
            for name in self._targets.keys() - self._seen:
                self.begin_target(name)
                self.end_target(complete=True)
                self._target.is_away = True
            self._listed = self._now

    def save(self) -> None:
        """Write the state file, if configured; log an error if that fails."""
        if self._path:
            write_state(self._path, _SeriesFile(_VERSION, self._listed, self._targets, self.totals))

    def _compare(self, old: bytes, new: bytes, *, wants_growth: bool) -> Seen:
        """Return the change of the counters; the first reason for a reset counts."""
        before, after = _counters(old), _counters(new)
        old_snapshot, old_start = old.split(b" ", 2)[:2]
        snapshot, start = new.split(b" ", 2)[:2]
        reset: Reset | None = None
        if old_start and start:
            # An equal start time means no reset: sums of squares may overflow.
            reset = "start_time" if old_start != start else None
        elif any(_is_less(after.get(name), counters) for name, counters in before.items()):
            reset = "decreased"
        elif _seconds(snapshot) - _seconds(old_snapshot) > self._interval:
            reset = "snapshot_gap"
        if not wants_growth:
            return Seen(None, reset, {})
        if reset not in {"start_time", "decreased"}:
            after = {
                name: OperationCounters(
                    *(a - b for a, b in zip(counters, before[name], strict=True))
                )
                if name in before
                else counters
                for name, counters in after.items()
            }
        return Seen(None, reset, after)

    def _forget(self, target: _Target) -> None:
        """Forget entries above the limit: the oldest disappeared ones first, then all."""
        for departed in (target.departed_before, target.departed):
            while departed and self._size > self._limit:
                del departed[next(iter(departed))]
                self._size -= 1
        if self._size > self._limit:
            logger.warning(
                "agent lustre: more than %d entries; some are forgotten; raise max-entries",
                self._limit,
            )
            self._size -= len(target.entries)
            target.entries = {}
            target.observed = 0.0

    def _load(self) -> None:
        found = read_state(self._path, _SeriesFile, _LARGEST_FILE, "all series start again")
        if found is not None and found.version == _VERSION:
            self._listed, self._targets = found.listed, found.targets
            self.totals = found.totals


def _seconds(text: bytes) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _is_less(after: OperationCounters | None, before: OperationCounters) -> bool:
    """Return whether a counter has fallen.

    Sums of squares overflow at 2^64 (65,536 transfers of 16 MiB): a fall from a value of 2^63 or
    more is ignored.
    """
    if after is None:
        return before.samples > 0
    return (
        after.samples < before.samples
        or after.sum < before.sum
        or after.sumsq < before.sumsq < _MAY_RUN_OVER
    )


def _counters(packed: bytes) -> dict[str, OperationCounters]:
    words = packed.split(b" ")[2:]
    found: dict[str, OperationCounters] = {}
    for i in range(0, len(words), _WORDS):
        name, samples, unit, total, squares = words[i : i + _WORDS]
        if unit == b"bytes":
            name = _BYTES.get(name, name)
        found[name.decode("ascii", "replace")] = OperationCounters(
            int(samples), int(total or 0), int(squares or 0)
        )
    return found
