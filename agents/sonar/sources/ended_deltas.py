"""Deltas between two readings of the kernel's sums over ended processes, by key.

Most entries do not change between readings, and a burst of short processes makes many. So entries
are kept as raw bytes and numbers, and the key of an entry is parsed only after a change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.machine.bpf.ended_records import parse_key, parse_raw

if TYPE_CHECKING:
    from ccagent.machine.bpf.ended_records import EndedKey, RawEndedReading, RawEntry
    from ccagent.machine.node import Node

_LARGEST = 64 * 1024 * 1024
_SECOND = 1_000_000_000

_PRUNED_EVERY = 5
"""Readings after which an entry that the kernel removed is removed here."""

_MOST_KNOWN = 16_384
"""Entries to keep: the kernel's own limit on most machines. Above 1.5 times this number, the
entries unchanged for longest are removed.
"""

_KEPT_LONGER = 60 * _SECOND
"""The kernel removes entries only when it is read."""


class EndedDelta(NamedTuple):
    """Processes that ended since the previous reading: their number and CPU time in ns."""

    processes: int
    runtime: int
    in_container: bool = False

    def plus(self, other: EndedDelta) -> EndedDelta:
        """Return the sum of this delta and another."""
        return EndedDelta(
            self.processes + other.processes,
            self.runtime + other.runtime,
            self.in_container or other.in_container,
        )


class EndedDeltas:
    """Computes the deltas of the kernel's sums between readings."""

    def __init__(self, node: Node, path: str) -> None:
        self._node = node
        self._path = path
        self._known: dict[bytes, RawEntry] = {}
        self._base = self._counted = self._missing = self._lost = 0
        self._read_at = 0
        self._reading = 0

    @property
    def is_counting(self) -> bool:
        """Return whether the last reading got the kernel's sums."""
        return self._read_at > 0

    @property
    def entries(self) -> int:
        """Return the number of entries with known last sums."""
        return len(self._known)

    def read(self, errors: list[str]) -> dict[EndedKey, EndedDelta]:
        """Return the deltas by key; empty if the sums are not pinned or not readable."""
        self._reading += 1
        try:
            reading = parse_raw(self._node.read(self._path, _LARGEST))
        except CcagentError as error:
            if not isinstance(error, NotHereError | NotPermittedError):
                errors.append(str(error))
            self._read_at = 0
            return {}
        return self._take(reading, errors)

    def _take(self, reading: RawEndedReading, errors: list[str]) -> dict[EndedKey, EndedDelta]:
        before, self._read_at = self._read_at, reading.header.time
        known = self._known
        deltas: dict[bytes, EndedDelta] = {}
        late = 0
        for entry in reading.entries:
            key, processes, runtime, since, last = entry
            old = known.get(key)
            if old is not None and old[3] == since:
                if processes > old[1]:
                    deltas[key] = EndedDelta(processes - old[1], runtime - old[2])
            elif before and since >= before:
                deltas[key] = EndedDelta(processes, runtime)
            known[key] = entry
            late += last >= reading.header.time
        if before and reading.total.processes >= self._base:
            self._check(reading.total.processes, deltas, errors)
        else:
            # The total does not include processes that ended during the reading.
            self._base = reading.total.processes + late
            self._counted = self._missing = self._lost = 0
        if self._reading % _PRUNED_EVERY == 0 or len(known) > _MOST_KNOWN * 3 // 2:
            self._prune(reading.header.time - reading.kept - _KEPT_LONGER)
        if not before:
            return {}
        return {parse_key(key): delta for key, delta in deltas.items()}

    def _check(self, total: int, deltas: dict[bytes, EndedDelta], errors: list[str]) -> None:
        """Compare the deltas with the total.

        A process may be in the total of one reading and in the entries of the next. If it is still
        missing then, it is lost.
        """
        self._counted += sum(delta.processes for delta in deltas.values())
        missing = total - self._base - self._counted
        lost = min(missing, self._missing)
        self._missing = missing
        if lost > self._lost:
            errors.append(
                f"/{self._path}: the CPU time of {lost - self._lost} ended processes was lost"
            )
            self._lost = lost

    def _prune(self, oldest: int) -> None:
        kept = {key: entry for key, entry in self._known.items() if entry[4] >= oldest}
        if len(kept) > _MOST_KNOWN * 3 // 2:
            kept = dict(sorted(kept.items(), key=_last)[-_MOST_KNOWN:])
        self._known = kept


def _last(item: tuple[bytes, RawEntry]) -> int:
    return item[1][4]
