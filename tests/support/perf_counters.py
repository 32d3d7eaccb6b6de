"""Counters that count while a test lets time pass: the kernel behind perf_event_open(2)."""

from __future__ import annotations

import errno
import struct

from ccagent.agents.metrics.perf.call import PerfCall, PerfEvent

HARDWARE = 0
RAW = 4


class CountingGroup:
    """A group of counters of one cpu. enabled, running: nanoseconds."""

    def __init__(self, cpu: int) -> None:
        self.cpu = cpu
        self.events: list[PerfEvent] = []
        self.values: list[int] = []
        self.is_enabled = False
        self.enabled = 0
        self.running = 0


class StandIn(PerfCall):
    """Counts `per_second[event]`, and of one cpu rather `on_cpu[event, cpu]`, while time passes.

    room: how many counters a cpu has for events of the types in `limited`. taken: how many of them
    others hold. refused: errors by event. denied: the error of every call, if any. broken, garbled:
    cpus whose counters can't be read, or make no sense. rate_of_time: what the time page tells, in
    Hz. calls: how often a counter was asked for.
    """

    def __init__(
        self,
        per_second: dict[PerfEvent, int] | None = None,
        on_cpu: dict[tuple[PerfEvent, int], int] | None = None,
        *,
        room: int = 100,
        limited: frozenset[int] = frozenset({HARDWARE, RAW}),
    ) -> None:
        super().__init__()
        self.per_second = per_second or {}
        self.on_cpu = on_cpu or {}
        self.room = room
        self.taken = 0
        self.limited = limited
        self.refused: dict[PerfEvent, int] = {}
        self.denied = 0
        self.broken: set[int] = set()
        self.garbled: set[int] = set()
        self.rate_of_time = 0.0
        self.calls = 0
        self._groups: dict[int, CountingGroup] = {}
        self._next = 1000

    @property
    def descriptors(self) -> set[int]:
        """What is open."""
        return set(self._groups)

    def groups(self, cpu: int) -> list[CountingGroup]:
        """Return the groups of a cpu, in the order in which they were opened."""
        return list(dict.fromkeys(group for group in self._groups.values() if group.cpu == cpu))

    def open(self, event: PerfEvent, cpu: int, leader: int = -1) -> int:
        self.calls += 1
        if self.denied:
            raise OSError(self.denied, "denied")
        if event in self.refused:
            raise OSError(self.refused[event], "refused")
        group = CountingGroup(cpu) if leader < 0 else self._groups[leader]
        # What was added to a group that counts might never count: see PerfCall.open.
        assert not group.is_enabled
        if self._size([*group.events, event]) > self.room:
            raise OSError(errno.EINVAL, "does not fit")
        group.events.append(event)
        group.values.append(0)
        self._next += 1
        self._groups[self._next] = group
        return self._next

    def enable(self, leader: int) -> None:
        self._groups[leader].is_enabled = True

    def read(self, leader: int) -> bytes:
        group = self._groups[leader]
        if group.cpu in self.broken:
            raise OSError(errno.EIO, "broken")
        if group.cpu in self.garbled:
            return b"\xff" * 40
        numbers = [len(group.values), group.enabled, group.running, *group.values]
        return struct.pack(f"={len(numbers)}Q", *numbers)

    def frequency(self, descriptor: int) -> float:
        assert descriptor in self._groups
        return self.rate_of_time

    def close(self, descriptor: int) -> None:
        del self._groups[descriptor]

    def let_pass(self, seconds: int) -> None:
        """Have all enabled groups count; those that don't fit together take equal turns."""
        for cpu in {group.cpu for group in self._groups.values()}:
            groups = self.groups(cpu)
            free = self.room - self.taken
            able = [group for group in groups if self._size(group.events) <= free]
            limited = [group for group in able if self._size(group.events)]
            crowded = sum(self._size(group.events) for group in limited) > free
            for group in groups:
                group.enabled += seconds * 10**9
                if group in able:
                    turns = len(limited) if crowded and group in limited else 1
                    self._count(group, seconds * 10**9 // turns)

    def _count(self, group: CountingGroup, nanoseconds: int) -> None:
        group.running += nanoseconds
        for index, event in enumerate(group.events):
            rate = self.on_cpu.get((event, group.cpu), self.per_second.get(event, 0))
            group.values[index] += rate * nanoseconds // 10**9

    def _size(self, events: list[PerfEvent]) -> int:
        return sum(event.type in self.limited for event in events)
