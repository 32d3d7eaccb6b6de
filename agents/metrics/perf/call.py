"""The system call perf_event_open(2), its descriptors, and the PMUs that have events.

Sources: perf_event_open(2); include/uapi/linux/perf_event.h; for the files in
/sys/bus/event_source/devices, Documentation/ABI/testing/sysfs-bus-event_source-devices-format and
-events. A PMU's file format/umask, `config:8-15`, has the bits of a term.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.errors import CcagentError, NotHereError, NotPermittedError, UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ccagent.machine.node import Node

PARANOID = "proc/sys/kernel/perf_event_paranoid"
DEVICES = "sys/bus/event_source/devices"

_NUMBERS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
"""System call number by architecture."""

_ATTRIBUTE = struct.Struct("=IIQQQQQIIQQ")
"""perf_event_attr up to config2: its second version, 72 bytes."""

_ENABLED_RUNNING_GROUP = 1 | 2 | 8
_DISABLED = 1
_ALL_PROCESSES = -1
_CLOSE_ON_EXEC = 8
_ENABLE = 0x2400
NO_GROUP = -1

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

_FORMAT = re.compile(rb"config([12]?):(\d{1,2}(?:-\d{1,2})?(?:,\d{1,2}(?:-\d{1,2})?)*)")
_TERM = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)(?:=(0x[0-9A-Fa-f]{1,16}|\d{1,20}))?", re.ASCII)
_WORDS = {"config": 0, "config1": 1, "config2": 2}
_WIDTH = 64


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

    def open(self, event: PerfEvent, cpu: int, leader: int = NO_GROUP) -> int:
        """Open a counter in the group of `leader`, or a disabled leader of a new group.

        Raise OSError, or NotHereError for an unknown architecture.
        """
        if self._call is None:
            self._call = _system_call()
        # An enabled group may never count later events of other PMUs (seen with Linux 6.18).
        flags = _DISABLED if leader == NO_GROUP else 0
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


class Field(NamedTuple):
    """Bits of a term, lowest first.

    word: 0 for config, 1 for config1, 2 for config2. bits: positions in the word.
    """

    word: int
    bits: tuple[int, ...]


def parse_format(content: bytes) -> Field:
    """Parse a file below format, `config:0-7,32-35`. Raise UnparsableError if invalid."""
    found = _FORMAT.fullmatch(content.strip())
    if found is None:
        raise UnparsableError(f"not a format of a PMU: {content[:80]!r}")
    bits: list[int] = []
    for part in found[2].split(b","):
        first, _, last = part.partition(b"-")
        start, end = int(first), int(last or first)
        # Ascending ranges in one word have at most as many bits as the word.
        if not start <= end < _WIDTH or (bits and start <= bits[-1]):
            raise UnparsableError(f"not ascending bits of a word: {content[:80]!r}")
        bits.extend(range(start, end + 1))
    return Field(int(found[1] or 0), tuple(bits))


def parse_terms(text: str) -> dict[str, int]:
    """Parse `event=0x04,umask=0x03`; the default value is 1. Raise UnparsableError if invalid."""
    terms: dict[str, int] = {}
    for part in text.strip().split(","):
        found = _TERM.fullmatch(part.strip())
        if found is None or found[1] in terms:
            raise UnparsableError(f"not the terms of an event: {text[:80]!r}")
        terms[found[1]] = (
            1 if found[2] is None else int(found[2], 0 if found[2][1:2] == "x" else 10)
        )
    return terms


def parse_type(content: bytes) -> int:
    """Parse the file `type` of a PMU. Raise UnparsableError if invalid."""
    text = content.strip()
    if not text.isdigit() or len(text) > 9:
        raise UnparsableError(f"not the type of a PMU: {content[:80]!r}")
    return int(text)


def encode(terms: Mapping[str, int], fields: Mapping[str, Field]) -> tuple[int, int, int]:
    """Return the terms encoded in config, config1 and config2 of perf_event_attr.

    Raise UnparsableError for an unknown term or a too large value.
    """
    words = [0, 0, 0]
    for name, value in terms.items():
        field = fields.get(name)
        if field is None and name in _WORDS:
            field = Field(_WORDS[name], tuple(range(_WIDTH)))
        if field is None:
            raise UnparsableError(f"the PMU has no term {name}")
        if value >> len(field.bits):
            raise UnparsableError(f"{name}={value:#x} has no room in {len(field.bits)} bits")
        for place, bit in enumerate(field.bits):
            words[field.word] |= (value >> place & 1) << bit
    return words[0], words[1], words[2]


class Pmu:
    """A PMU. Each of its files is read once, at first use."""

    def __init__(self, node: Node, name: str) -> None:
        self.name = name
        self._node = node
        self._directory = f"{DEVICES}/{name}"
        self._type: int | None = None
        self._fields: dict[str, Field] = {}

    def event(self, text: str) -> PerfEvent:
        """Return the event of perf's notation, `event=0xc7,umask=0x01`.

        Raise NotHereError or UnparsableError for an unknown event, else the errors of Node.read.
        """
        terms = parse_terms(text)
        if self._type is None:
            self._type = read_parsed(self._node, f"{self._directory}/type", parse_type)
        for name in terms:
            if name not in self._fields:
                path = f"{self._directory}/format/{name}"
                self._fields[name] = read_parsed(self._node, path, parse_format)
        return PerfEvent(self._type, *encode(terms, self._fields))

    def find_event(self, name: str) -> PerfEvent:
        """Return a named event of the PMU. Raise as `event` does."""
        path = f"{self._directory}/events/{name}"
        return self.event(self._node.read(path).decode("ascii", "replace"))

    def cpus(self) -> list[int]:
        """Return the cpus that count the PMU's events, one for each hardware instance.

        Raise UnparsableError for a bad list, else the errors of Node.read.
        """
        return read_parsed(self._node, f"{self._directory}/cpumask", parse_cpu_list)


def find_pmus(node: Node, pattern: str) -> list[Pmu]:
    """Return the PMUs whose names match a pattern, sorted.

    Raise NotHereError if no name matches, else the errors of Node.list.
    """
    wanted = re.compile(pattern)
    names = sorted(name for name in node.list(DEVICES) if wanted.fullmatch(name))
    if not names:
        raise NotHereError(f"/{DEVICES}: no {pattern}")
    return [Pmu(node, name) for name in names]
