"""Deltas of the kernel's sums over ended processes, by key, from one reading to the next.

In steady state most entries of the kernel have not changed, and in a storm there are many: an entry
is kept as raw bytes and numbers, and its key is parsed only if it has changed.
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
"""Readings after which entries that the kernel has removed are removed here."""

_MOST_KNOWN = 16_384
"""Entries that are kept: as many as the kernel has, on most machines. Beyond 1.5 times as many the
entries without a change for longest are removed."""

_KEPT_LONGER = 60 * _SECOND
"""The kernel removes entries when it is read, hence later than it could."""


class EndedDelta(NamedTuple):
    """Processes that have ended since the previous reading: their number, and ns on a CPU."""

    processes: int
    runtime: int
    in_container: bool = False

    def plus(self, other: EndedDelta) -> EndedDelta:
        """Return the sum of both."""
        return EndedDelta(
            self.processes + other.processes,
            self.runtime + other.runtime,
            self.in_container or other.in_container,
        )


class EndedDeltas:
    """Deltas of the kernel's sums, from one reading to the next."""

    def __init__(self, node: Node, path: str) -> None:
        self._node = node
        self._path = path
        self._known: dict[bytes, RawEntry] = {}
        self._base = self._counted = self._missing = self._lost = 0
        self._read_at = 0
        self._reading = 0

    @property
    def is_counting(self) -> bool:
        """Return whether the sums could be read at the last reading."""
        return self._read_at > 0

    @property
    def entries(self) -> int:
        """Return the number of entries whose last sums are known."""
        return len(self._known)

    def read(self, errors: list[str]) -> dict[EndedKey, EndedDelta]:
        """Return the deltas; none where the sums are not pinned, or not readable for this user."""
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
            # The total lacks processes that ended during the reading.
            self._base = reading.total.processes + late
            self._counted = self._missing = self._lost = 0
        if self._reading % _PRUNED_EVERY == 0 or len(known) > _MOST_KNOWN * 3 // 2:
            self._prune(reading.header.time - reading.kept - _KEPT_LONGER)
        if not before:
            return {}
        return {parse_key(key): delta for key, delta in deltas.items()}

    def _check(self, total: int, deltas: dict[bytes, EndedDelta], errors: list[str]) -> None:
        """Compare the deltas with the total.

        A process may be in the total of a reading and in the entries of the next one. It is lost if
        it is still missing then.
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
