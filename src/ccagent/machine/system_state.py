"""The state of the node as a whole: CPUs, memory, load, disks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.clock import timestamp
from ccagent.records.envelopes import LARGEST_UINT, NO_FLOAT, SampleDisk, SampleSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from ccagent.machine.node import Node

    T = TypeVar("T")

_LARGEST_CPU = 65_535
_LARGEST_PID_MAX = 4_194_304
_BUSY = (1, 2, 3, 6, 7)


class CpuTimes(NamedTuple):
    """boot: seconds since 1970, 0 if unknown. cpus: busy seconds since boot by logical cpu."""

    boot: int
    cpus: list[int]


class Load(NamedTuple):
    """The fields of /proc/loadavg, without the last pid."""

    load1: float
    load5: float
    load15: float
    runnable: int
    existing: int


def parse_stat(content: bytes, clock_ticks: int) -> CpuTimes:
    """Parse /proc/stat: the lines `cpuN` and `btime`. Raises UnparsableError.

    Busy is user, nice, system, irq and softirq; user holds guest time already. Steal is time
    that the cpu was not there.
    """
    busy: dict[int, int] = {}
    boot = 0
    try:
        for line in content.split(b"\n"):
            if line.startswith(b"cpu") and line[3:4].isdigit():
                fields = line.split()
                number = int(fields[0][3:])
                if number > _LARGEST_CPU:
                    raise UnparsableError(f"there is no cpu {number}")
                busy[number] = _uint(sum(int(fields[i]) for i in _BUSY) // clock_ticks)
            elif line.startswith(b"btime "):
                boot = int(line[6:])
                break
    except (ValueError, IndexError) as error:
        raise UnparsableError(str(error)) from None
    if not 0 <= boot < 1 << 40:
        raise UnparsableError(f"btime {boot} is out of range")
    return CpuTimes(boot, [busy.get(cpu, 0) for cpu in range(max(busy, default=-1) + 1)])


_MEMINFO = re.compile(rb"^([\x21-\x39\x3b-\x7e]+): *([0-9]{1,18})(?: kB)?\n", re.MULTILINE)
"""A line as all kernels write it; others are parsed one by one."""


def parse_meminfo(content: bytes) -> dict[str, int]:
    """Parse /proc/meminfo: name -> KB (or a plain count). Raises UnparsableError."""
    found = _MEMINFO.findall(content)
    if len(found) == content.count(b"\n"):
        return {name.decode("ascii"): int(number) for name, number in found}
    values: dict[str, int] = {}
    for line in content.splitlines():
        name, colon, rest = line.partition(b":")
        number = rest.split()[:1]
        if not colon or not number:
            continue
        try:
            values[name.decode("ascii")] = _uint(int(number[0]))
        except ValueError:
            raise UnparsableError(f"not a number: {line[:80]!r}") from None
    return values


def used_memory(meminfo: dict[str, int]) -> int:
    """KB in use: MemTotal - MemAvailable; kernels before 3.14 lack the latter."""
    try:
        total = meminfo["MemTotal"]
        available = meminfo.get("MemAvailable")
        if available is None:
            available = meminfo["MemFree"] + meminfo["Buffers"] + meminfo["Cached"]
    except KeyError as error:
        raise UnparsableError(f"no {error.args[0]}") from None
    return max(0, total - available)


def parse_loadavg(content: bytes) -> Load:
    """Parse /proc/loadavg: `0.20 0.18 0.12 1/80 11206`. Raises UnparsableError."""
    fields = content.split()
    try:
        runnable, existing = fields[3].split(b"/")
        loads = [float(field) for field in fields[:3]]
        if not all(0 <= load < 1e9 for load in loads):
            raise UnparsableError("a load is out of range")
        return Load(
            loads[0] or NO_FLOAT,
            loads[1] or NO_FLOAT,
            loads[2] or NO_FLOAT,
            _uint(int(runnable)),
            _uint(int(existing)),
        )
    except (ValueError, IndexError):
        raise UnparsableError(f"not three loads and two counts: {content[:80]!r}") from None


def parse_diskstats(content: bytes) -> list[SampleDisk]:
    """Parse /proc/diskstats: `major minor name values...`. Raises UnparsableError.

    Devices that were never used (all values 0: unused loop and RAM disks) are left out.
    """
    disks: list[SampleDisk] = []
    for line in content.splitlines():
        fields = line.split()
        if not fields:
            continue
        try:
            name = fields[2].decode("utf-8", "replace")
            stats = [_uint(int(field)) for field in fields[3:]]
            if any(stats):
                disk = SampleDisk(
                    name=name, major=_uint(int(fields[0])), minor=_uint(int(fields[1])), stats=stats
                )
                disks.append(disk)
        except (ValueError, IndexError):
            raise UnparsableError(f"not a device with counters: {line[:80]!r}") from None
    return disks


class SystemState(NamedTuple):
    """What was read, and the boot time in seconds since 1970."""

    boot: int
    system: SampleSystem


def read_system(node: Node, errors: list[str]) -> SystemState:
    """Read what can be read; each file that can't be costs its fields and adds to `errors`."""

    def read(path: str, parse: Callable[[bytes], T], otherwise: T) -> T:
        try:
            return parse(node.read(path))
        except NotHereError:
            return otherwise
        except UnparsableError as error:
            text = str(error)
            errors.append(text if text.startswith("/") else f"/{path}: {text}")
        except CcagentError as error:
            errors.append(str(error))
        return otherwise

    times = read("proc/stat", lambda text: parse_stat(text, node.clock_ticks), CpuTimes(0, []))
    load = read("proc/loadavg", parse_loadavg, Load(NO_FLOAT, NO_FLOAT, NO_FLOAT, 0, 0))
    boot = times.boot or max(0, int(node.boot_time()))
    system = SampleSystem(
        boot=timestamp(boot),
        cpus=times.cpus,
        disks=read("proc/diskstats", parse_diskstats, []),
        used_memory=read("proc/meminfo", lambda text: used_memory(parse_meminfo(text)), 0),
        load1=load.load1,
        load5=load.load5,
        load15=load.load15,
        runnable_entities=load.runnable,
        existing_entities=load.existing,
    )
    return SystemState(boot, system)


def pid_max(node: Node) -> int:
    """Read /proc/sys/kernel/pid_max; the largest that Linux knows if it can't be read."""
    try:
        return int(node.read("proc/sys/kernel/pid_max"))
    except (CcagentError, ValueError):
        return _LARGEST_PID_MAX


def _uint(number: int) -> int:
    if not 0 <= number <= LARGEST_UINT:
        raise ValueError(f"{number} is out of range")
    return number
