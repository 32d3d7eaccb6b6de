"""Deltas of the kernel's counters between two readings. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ccagent.machine.bpf.io_records import IoCounts, JobTraffic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

K = TypeVar("K")
V = TypeVar("V", IoCounts, JobTraffic)

_KEPT = frozenset({"since", "magic"})


class Delta(NamedTuple, Generic[V]):
    """Deltas since the last reading, and the counters."""

    since_last: V
    total: V


class Deltas(Generic[K, V]):
    """Deltas between consecutive readings.

    The delta of a new entry is its whole value: it was created since the last reading. The first
    reading has no deltas, because its entries may be old.
    """

    def __init__(self) -> None:
        self._before: Mapping[K, V] | None = None

    def of(self, entries: Mapping[K, V]) -> Iterator[tuple[K, Delta[V]]]:
        """Yield the deltas of a reading, and store the reading for the next call."""
        before, self._before = self._before, entries
        if before is None:
            return
        for key, counts in entries.items():
            yield key, Delta(subtract(counts, before.get(key)), counts)


def subtract(counts: V, before: V | None) -> V:
    """Return the delta of two readings of an entry. A different `since` means a new entry."""
    if before is None or before.since != counts.since:
        return counts
    deltas = [
        value if name in _KEPT else max(0, value - old)
        for name, value, old in zip(counts._fields, counts, before, strict=True)
    ]
    return type(counts)(*deltas)


def add(counts: V, other: V) -> V:
    """Return the sums of two entries, with the earlier `since`."""
    sums = [
        min(value, more) if name in _KEPT else value + more
        for name, value, more in zip(counts._fields, counts, other, strict=True)
    ]
    return type(counts)(*sums)


def is_idle(counts: IoCounts | JobTraffic) -> bool:
    """Return whether all deltas are 0."""
    return not any(
        value for name, value in zip(counts._fields, counts, strict=True) if name not in _KEPT
    )
