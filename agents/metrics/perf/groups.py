"""Groups of perf counters, as few as the hardware allows, and their rates.

The counters of a group count at the same times, and one call reads them. If groups do not fit
together, the kernel multiplexes them. A rate is the delta over the time in which the group counted.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ccagent.agents.metrics.perf.call import parse_counts
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.agents.metrics.perf.call import Counts, PerfCall, PerfEvent

_NO_EVENT_WILL_DO = frozenset(
    {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSYS}
)
_LONG_ENOUGH = 100_000_000
_LARGEST = 64


class EventGroup:
    """Group of counters on one cpu that count at the same times.

    numbers: numbers of the group's events. is_starved: the group was enabled since the last reading
    but never scheduled.
    """

    def __init__(self, call: PerfCall, cpu: int) -> None:
        self.cpu = cpu
        self.numbers: list[int] = []
        self.is_starved = False
        self._call = call
        self._descriptors: list[int] = []
        self._before: Counts | None = None

    @property
    def leader(self) -> int:
        """Descriptor of the group leader."""
        return self._descriptors[0]

    def add(self, number: int, event: PerfEvent) -> None:
        """Open a counter of an event. Raise OSError if this group cannot count it."""
        if self._descriptors:
            self._descriptors.append(self._call.open(event, self.cpu, self.leader))
        else:
            self._descriptors.append(self._call.open(event, self.cpu))
        self.numbers.append(number)

    def enable(self) -> None:
        """Enable the group. Raise OSError if the kernel refuses."""
        self._call.enable(self.leader)

    def read(self, rates: list[float | None]) -> float | None:
        """Write the rates per second since the last reading into `rates`, by number.

        Return the share of time that was counted. The first reading returns None and writes no
        rates. Raise OSError or UnparsableError.
        """
        before, self._before = self._before, None
        now = self._before = parse_counts(self._call.read(self.leader))
        if before is None:
            return None
        enabled, running = now.enabled - before.enabled, now.running - before.running
        self.is_starved = running <= 0 and enabled >= _LONG_ENOUGH
        if enabled <= 0 or running <= 0:
            return 0.0 if enabled > 0 else None
        for number, new, old in zip(self.numbers, now.values, before.values, strict=False):
            if new >= old:
                rates[number] = (new - old) * 1e9 / running
        return min(1.0, running / enabled)

    def close(self) -> None:
        """Close the counters, the leader last."""
        while self._descriptors:
            self._call.close(self._descriptors.pop())


class PerfCounters:
    """Counters of a core or a memory controller, on one cpu or several.

    together: number of first events to keep in one group if possible.
    """

    def __init__(self, call: PerfCall, together: int = 0) -> None:
        self.groups: list[EventGroup] = []
        self._call = call
        self._together = together
        self._events: list[PerfEvent] = []

    def add(
        self, cpu: int, events: Sequence[PerfEvent], largest: int = _LARGEST
    ) -> dict[int, OSError]:
        """Count events on a cpu, in groups as large as the kernel accepts, at most `largest`.

        Events are numbered in the order of adding. Return the refused events. Raise OSError for an
        error of all events, such as permissions, and NotHereError on an unknown architecture.
        """
        first = len(self._events)
        self._events += events
        return self._open(cpu, range(first, len(self._events)), largest)

    def rates(self, errors: list[str], shares: list[float]) -> list[float | None]:
        """Return the rates per second since the last reading, None for an unknown rate.

        Append to `shares` the share of time in which each group counted.
        """
        rates: list[float | None] = [None] * len(self._events)
        for group in tuple(self.groups):
            try:
                share = group.read(rates)
                if share is not None:
                    shares.append(share)
                if group.is_starved and len(group.numbers) > 1:
                    self._split(group)
            except OSError as error:
                errors.append(f"perf: cpu {group.cpu}: {os.strerror(error.errno or 0)}")
            except UnparsableError as error:
                errors.append(f"perf: cpu {group.cpu}: {error}")
        return rates

    def close(self) -> None:
        """Close all counters."""
        while self.groups:
            self.groups.pop().close()

    def _open(self, cpu: int, numbers: Sequence[int], largest: int) -> dict[int, OSError]:
        opened: list[EventGroup] = []
        refused: dict[int, OSError] = {}
        try:
            for number in numbers:
                if (
                    opened
                    and len(opened[-1].numbers) < largest
                    and not self._add(opened[-1], number)
                ):
                    continue
                group = EventGroup(self._call, cpu)
                error = self._add(group, number)
                if error is None:
                    opened.append(group)
                else:
                    refused[number] = error
            for group in opened:
                group.enable()
        except OSError:
            for group in opened:
                group.close()
            raise
        self.groups += opened
        return refused

    def _add(self, group: EventGroup, number: int) -> OSError | None:
        """Add an event to a group. Return the error if the kernel refuses this event."""
        try:
            group.add(number, self._events[number])
        except OSError as error:
            if error.errno in _NO_EVENT_WILL_DO:
                raise
            return error
        return None

    def _split(self, group: EventGroup) -> None:
        """Split a group that is never scheduled. Raise OSError if the kernel refuses.

        The kernel accepts a group that fits an idle PMU, but the NMI watchdog may use a counter.
        """
        numbers = group.numbers
        cut = self._together if numbers[0] == 0 else 0
        if not 0 < cut < len(numbers):
            cut = len(numbers) // 2
        group.close()
        self.groups.remove(group)
        self._open(group.cpu, numbers[:cut], _LARGEST)
        self._open(group.cpu, numbers[cut:], _LARGEST)
