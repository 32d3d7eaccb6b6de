"""Deltas of the kernel's counters between two readings. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ccagent.machine.bpf.io_records import IoCounts, JobTraffic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

K = TypeVar("K")
V = TypeVar("V", IoCounts, JobTraffic)

_KEPT = frozenset({"since", "magic"})


class Delta(NamedTuple, Generic[V]):
    """Values since the last reading, and the counters themselves."""

    since_last: V
    total: V


class Deltas(Generic[K, V]):
    """Computes deltas, one reading after the other.

    An entry that was not there before counts whole: it was created since. The first reading has no
    deltas, for its entries may be old.
    """

    def __init__(self) -> None:
        self._before: Mapping[K, V] | None = None

    def of(self, entries: Mapping[K, V]) -> Iterator[tuple[K, Delta[V]]]:
        """Yield the deltas of a reading; remember it for the next one."""
        before, self._before = self._before, entries
        if before is None:
            return
        for key, counts in entries.items():
            yield key, Delta(subtract(counts, before.get(key)), counts)


def subtract(counts: V, before: V | None) -> V:
    """Return the delta of two readings of an entry. Another `since` tells another entry."""
    if before is None or before.since != counts.since:
        return counts
    deltas = [
        value if name in _KEPT else max(0, value - old)
        for name, value, old in zip(counts._fields, counts, before, strict=True)
    ]
    return type(counts)(*deltas)


def add(counts: V, other: V) -> V:
    """Return the sum of two entries, with the earlier `since`."""
    sums = [
        min(value, more) if name in _KEPT else value + more
        for name, value, more in zip(counts._fields, counts, other, strict=True)
    ]
    return type(counts)(*sums)


def is_idle(counts: IoCounts | JobTraffic) -> bool:
    """Return whether nothing happened."""
    return not any(
        value for name, value in zip(counts._fields, counts, strict=True) if name not in _KEPT
    )
