"""The system call perf_event_open(2), its descriptors, and groups of counters.

Source: perf_event_open(2); include/uapi/linux/perf_event.h.

The counters of a group count at the same times, and one call reads them. If groups do not fit
together, the kernel multiplexes them. A rate is the delta over the time in which the group counted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.errors import CcagentError, NotHereError, NotPermittedError, UnparsableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_NUMBERS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
"""System call number by architecture."""

_ATTRIBUTE = struct.Struct("=IIQQQQQIIQQ")
"""perf_event_attr up to config2: its second version, 72 bytes."""

_ENABLED_RUNNING_GROUP = 1 | 2 | 8
_DISABLED = 1
_ALL_PROCESSES = -1
_CLOSE_ON_EXEC = 8
_ENABLE = 0x2400
_NO_GROUP = -1

_PAGE = 4096
_CAPABILITIES = struct.Struct("=Q")
_TIME = struct.Struct("=HI")
_CAN_USE_TIME = 1 << 3

_NOT_HERE = frozenset(
    {errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
)
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE})
_OF_DISTRIBUTIONS = 3
"""Level of perf_event_paranoid from which distribution kernels require CAP_SYS_ADMIN."""


class PerfEvent(NamedTuple):
    """Event of a counter. type: type of the PMU. Other fields: the event encoded in its format."""

    type: int
    config: int
    config1: int = 0
    config2: int = 0


CYCLES = PerfEvent(0, 0)
INSTRUCTIONS = PerfEvent(0, 1)
"""Events of every core PMU: PERF_TYPE_HARDWARE; the kernel translates them."""


class Counts(NamedTuple):
    """A reading of a group.

    enabled: nanoseconds since the group was enabled. running: nanoseconds of counting. values:
    values of the events in the order of opening.
    """

    enabled: int
    running: int
    values: tuple[int, ...]


class PerfCall:
    """Counters of events of all processes on a cpu. Methods raise OSError if the kernel refuses.

    Tests replace it.
    """

    def __init__(self) -> None:
        self._call: Callable[..., int] | None = None

    def open(self, event: PerfEvent, cpu: int, leader: int = _NO_GROUP) -> int:
        """Open a counter in the group of `leader`, or a disabled leader of a new group.

        Raise OSError, or NotHereError for an unknown architecture.
        """
        if self._call is None:
            self._call = _system_call()
        # An enabled group may never count later events of other PMUs (seen with Linux 6.18).
        flags = _DISABLED if leader == _NO_GROUP else 0
        attribute = _ATTRIBUTE.pack(
            event.type,
            _ATTRIBUTE.size,
            event.config,
            0,
            0,
            _ENABLED_RUNNING_GROUP,
            flags,
            0,
            0,
            event.config1,
            event.config2,
        )
        return self._call(attribute, _ALL_PROCESSES, cpu, leader, _CLOSE_ON_EXEC)

    def enable(self, leader: int) -> None:
        """Enable a group. Raise OSError if the kernel refuses."""
        fcntl.ioctl(leader, _ENABLE, 0)

    def read(self, leader: int) -> bytes:
        """Read all counters of a group with one call. Raise OSError if that fails."""
        return os.read(leader, _PAGE)

    def frequency(self, descriptor: int) -> float:
        """Return the rate of the system's time counter in Hz; 0 if unknown.

        The time counter is the TSC on x86_64 and CNTVCT on aarch64.
        """
        import mmap

        try:
            with mmap.mmap(descriptor, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ) as page:
                return parse_time_page(page[:64])
        except OSError:
            return 0.0

    def close(self, descriptor: int) -> None:
        """Close a counter."""
        os.close(descriptor)


def parse_counts(content: bytes) -> Counts:
    """Parse a group read with PERF_FORMAT_GROUP and both times.

    Raise UnparsableError if invalid.
    """
    if len(content) < 24 or len(content) % 8:
        raise UnparsableError(f"perf: {len(content)} bytes are no counters of a group")
    number, enabled, running, *values = struct.unpack(f"={len(content) // 8}Q", content)
    if number != len(values):
        raise UnparsableError(f"perf: a group of {number} has {len(values)} counters")
    return Counts(enabled, running, tuple(values))


def parse_time_page(content: bytes) -> float:
    """Return the rate of the time counter of a perf_event_mmap_page in Hz; 0 if it has none.

    Nanoseconds are `counter * time_mult >> time_shift`.
    """
    if len(content) < 56:
        return 0.0
    (capabilities,) = _CAPABILITIES.unpack_from(content, 40)
    shift, factor = _TIME.unpack_from(content, 50)
    if not capabilities & _CAN_USE_TIME or not factor or shift >= 64:
        return 0.0
    return float(1e9 * (1 << shift) / factor)


def explain_error(error: OSError, paranoid: str, lack: str = "") -> CcagentError:
    """Return an error `perf_event_open: REASON: cause and fix`.

    lack: a clause about this process's capabilities.
    """
    text = f"perf_event_open: {os.strerror(error.errno or 0)}"
    if error.errno in {errno.EACCES, errno.EPERM}:
        if paranoid.lstrip("-").isdigit() and int(paranoid) <= 0:
            return NotPermittedError(
                f"{text}, though kernel.perf_event_paranoid is {paranoid}: "
                "a filter of system calls (of a container?) or a security module forbids it"
            )
        if paranoid.isdigit() and int(paranoid) >= _OF_DISTRIBUTIONS:
            return NotPermittedError(
                f"{text}: where kernel.perf_event_paranoid is {paranoid}, a distribution's level, "
                "CAP_PERFMON is not enough: set it to 2 with CAP_PERFMON, or to 0 without"
            )
        return NotPermittedError(
            f"{text}: to count on whole cpus needs the capability CAP_PERFMON (CAP_SYS_ADMIN "
            "before Linux 5.8), or kernel.perf_event_paranoid at 0 or less"
            + (f", and it is {paranoid}" if paranoid else "")
            + (f"; {lack}" if lack else "")
        )
    if error.errno in _NOT_HERE:
        return NotHereError(f"{text}: no such counters (a virtual machine without a PMU?)")
    if error.errno in _NO_ROOM:
        return NotPermittedError(f"{text}: each counter is one, and the hard limit is too low")
    return UnparsableError(text)


PARANOID = "proc/sys/kernel/perf_event_paranoid"


def _system_call() -> Callable[..., int]:
    """Return perf_event_open(2). Raise NotHereError on an architecture without a known number."""
    import ctypes

    machine = os.uname().machine
    if machine not in _NUMBERS:
        raise NotHereError(f"perf_event_open: unknown system call number on {machine}")
    number = _NUMBERS[machine]
    syscall: Any = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    syscall.argtypes = [
        ctypes.c_long,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_ulong,
    ]

    def call(attribute: bytes, process: int, cpu: int, group: int, flags: int) -> int:
        # The kernel writes to the attribute only if it doesn't know its size.
        descriptor: int = syscall(number, attribute, process, cpu, group, flags)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return descriptor

    return call


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
        leader = self.leader if self._descriptors else _NO_GROUP
        self._descriptors.append(self._call.open(event, self.cpu, leader))
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
