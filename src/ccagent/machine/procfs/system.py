"""Parsers of the kernel's files about the whole machine: of /proc, and lists of cpus in /sys.

Source: proc(5); Documentation/admin-guide/iostats.rst, scheduler/sched-stats.rst and
accounting/psi.rst of Linux. Files of control groups have the same form of pressure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT, SampleDisk

CPU_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Order of a cpu's times. guest and guest_nice follow, but are part of user and nice."""

LARGEST_CPU = 65_535
_COUNTERS = (b"ctxt", b"intr", b"processes")
_GAUGES = (b"procs_running", b"procs_blocked")
_NUMBERS = (*_COUNTERS, *_GAUGES, b"btime")


class KernelStat(NamedTuple):
    """Content of /proc/stat.

    times: clock ticks in each of CPU_STATES, by online cpu. guests: clock ticks of guest and
    guest_nice, by online cpu; 0 if the kernel lacks them. events: `ctxt`, `intr` and `processes`
    since boot. tasks: `procs_running` and `procs_blocked`. boot: seconds since 1970, 0 if unknown.
    """

    times: dict[int, list[int]]
    guests: dict[int, tuple[int, int]]
    events: dict[str, int]
    tasks: dict[str, int]
    boot: int


def parse_kernel_stat(content: bytes) -> KernelStat:
    """Parse /proc/stat. Raise UnparsableError for an invalid line.

    The line `cpu` is skipped: it includes cpus that are offline now.
    """
    times: dict[int, list[int]] = {}
    guests: dict[int, tuple[int, int]] = {}
    numbers: dict[bytes, int] = {}
    try:
        for line in content.split(b"\n"):
            if line.startswith(b"cpu"):
                if line[3:4].isdigit():
                    fields = line.split()
                    number = int(fields[0][3:])
                    ticks = list(map(int, fields[1:11]))
                    if number > LARGEST_CPU or len(ticks) < len(CPU_STATES):
                        raise UnparsableError(f"not a cpu with eight times: {line[:80]!r}")
                    if min(ticks) < 0 or max(ticks) > LARGEST_UINT:
                        raise UnparsableError(f"a time is out of range: {line[:80]!r}")
                    guests[number] = (ticks[8], ticks[9]) if len(ticks) > 9 else (0, 0)
                    times[number] = ticks[:8]
                continue
            # `intr` continues with a number for each possible interrupt.
            name, *rest = line.split(None, 2)[:2] or (b"",)
            if name in _NUMBERS:
                value = numbers[name] = int(rest[0])
                if not 0 <= value <= LARGEST_UINT:
                    raise UnparsableError(f"out of range: {line[:80]!r}")
    except (ValueError, IndexError) as error:
        raise UnparsableError(str(error)) from error
    boot = numbers.get(b"btime", 0)
    if boot >= 1 << 40:
        raise UnparsableError(f"btime {boot} is out of range")
    events, tasks = (
        {name.decode("ascii"): value for name, value in numbers.items() if name in names}
        for names in (_COUNTERS, _GAUGES)
    )
    return KernelStat(times, guests, events, tasks, boot)


class Load(NamedTuple):
    """The fields of /proc/loadavg, without the last pid."""

    load1: float
    load5: float
    load15: float
    runnable: int
    existing: int


def parse_loadavg(content: bytes) -> Load:
    """Parse `0.20 0.18 0.12 1/80 11206`. Raise UnparsableError for other text."""
    fields = content.split()
    try:
        runnable, existing = map(int, fields[3].split(b"/"))
        load = Load(float(fields[0]), float(fields[1]), float(fields[2]), runnable, existing)
    except (ValueError, IndexError) as error:
        raise UnparsableError(f"not three loads and two counts: {content[:80]!r}") from error
    if not all(0 <= each < 1e9 for each in load[:3]) or not all(
        0 <= each <= LARGEST_UINT for each in load[3:]
    ):
        raise UnparsableError(f"out of range: {content[:80]!r}")
    return load


def parse_file_nr(content: bytes) -> tuple[int, int]:
    """Return the number of open files, and its limit. Raise UnparsableError for other text."""
    words = content.split()
    if len(words) != 3 or not all(word.isdigit() and len(word) < 20 for word in words):
        raise UnparsableError(f"not three numbers: {content[:80]!r}")
    return int(words[0]), int(words[2])


class MdArray(NamedTuple):
    """An array of disks in /proc/mdstat.

    state: `active` or `inactive`; `recovering`, `reshaping`, `checking` or `resyncing` while its
    disks are read. active, failed, spare, required: disks. blocks, synced: of 1 KiB.
    """

    name: str
    state: str
    active: int
    failed: int
    spare: int
    required: int
    blocks: int
    synced: int


_ARRAY = re.compile(r"^(\w\S*) : (\w+)(.*)\n +([0-9]{1,18}) blocks(.*)\n((?: .*\n)*)", re.MULTILINE)
_DISKS = re.compile(r" \[([0-9]{1,9})/([0-9]{1,9})\]")
_ACTIVITY = re.compile(r"[ \t](recovery|reshape|check|resync) *=(?:.*\(([0-9]{1,18})/)?")
_ACTIVITIES = {
    "recovery": "recovering", "reshape": "reshaping", "check": "checking", "resync": "resyncing",
}  # fmt: skip


def parse_mdstat(content: bytes) -> list[MdArray]:
    """Parse /proc/mdstat; other lines than those of arrays are ignored.

    Arrays without redundancy have no line of disks: each of their disks is needed.
    """
    found: list[MdArray] = []
    for array in _ARRAY.findall(content.decode("ascii", "replace")):
        name, state, devices, size, disks, rest = array
        numbers, activity = _DISKS.search(disks), _ACTIVITY.search(rest)
        required = active = 0
        if state != "inactive":
            all_disks = devices.count("[")
            required, active = map(int, numbers.groups()) if numbers else (all_disks, all_disks)
        found.append(
            MdArray(
                name=name,
                state=_ACTIVITIES[activity[1]] if activity else state,
                active=active,
                failed=devices.count("(F)"),
                spare=devices.count("(S)"),
                required=required,
                blocks=int(size),
                synced=int((activity[2] or 0) if activity else size),
            )
        )
    return found


def parse_vmstat(content: bytes) -> dict[str, int]:
    """Return events, pages or KiB by name. Raise UnparsableError for other text."""
    words = content.decode("ascii", "replace").split()
    try:
        found = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    except ValueError as error:
        raise UnparsableError(f"not names and numbers: {content[:80]!r}") from error
    if not found or min(found.values()) < 0 or max(found.values()) > LARGEST_UINT:
        raise UnparsableError(f"no numbers, or one out of range: {content[:80]!r}")
    return found


_LINE = re.compile(
    rb"^(?:Node [0-9]+ )?([\x21-\x39\x3b-\x7e]+): *([0-9]{1,18})(?: kB)?\n", re.MULTILINE
)
"""The usual form of a line. Files with other lines are parsed line by line."""


def parse_meminfo(content: bytes) -> dict[str, int]:
    """Return KB by name, or a count for `HugePages_*`. Raise UnparsableError for other lines.

    Lines of NUMA nodes, `Node 0 MemFree: 1 kB`, have the same names.
    """
    found = _LINE.findall(content)
    if len(found) == content.count(b"\n"):
        return {name.decode("ascii"): int(number) for name, number in found}
    values: dict[str, int] = {}
    for line in content.splitlines():
        name, colon, rest = line.partition(b":")
        number = rest.split()[:1]
        if not colon or not number:
            continue
        try:
            key = name.decode("ascii").rpartition(" ")[2]
            value = values[key] = int(number[0])
        except ValueError as error:
            raise UnparsableError(f"not a number: {line[:80]!r}") from error
        if not 0 <= value <= LARGEST_UINT:
            raise UnparsableError(f"out of range: {line[:80]!r}")
    return values


def compute_used_memory(meminfo: dict[str, int]) -> int:
    """Return KB in use: MemTotal - MemAvailable. Kernels before 3.14 lack MemAvailable."""
    try:
        total = meminfo["MemTotal"]
        available = meminfo.get("MemAvailable")
        if available is None:
            available = meminfo["MemFree"] + meminfo["Buffers"] + meminfo["Cached"]
    except KeyError as error:
        raise UnparsableError(f"no {error.args[0]}") from error
    return max(0, total - available)


_OLDEST = 15
"""First supported version of the format: earlier versions have twelve numbers per cpu."""
_SCHEDSTAT_VERSION = re.compile(rb"version ([0-9]{1,6})\n")
# The leading literal skips the lines of domains, most of the file, at search speed.
_CPU_LINE = re.compile(
    rb"\ncpu([0-9]{1,6})(?: [0-9]{1,20}){6} ([0-9]{1,20}) ([0-9]{1,20}) ([0-9]{1,20})(?=\n)"
)


class SchedulerTimes(NamedTuple):
    """ran, waited: nanoseconds of all tasks since boot. timeslices: number of runs."""

    ran: int
    waited: int
    timeslices: int


def parse_schedstat(content: bytes) -> dict[int, SchedulerTimes]:
    """Return fields 7, 8 and 9 of /proc/schedstat by hwthread. Raise UnparsableError.

    Source: Documentation/scheduler/sched-stats.rst of Linux. Some versions of the document name
    jiffies; rq_cpu_time and run_delay are in nanoseconds (kernel/sched/stats.h).
    """
    version = _SCHEDSTAT_VERSION.match(content)
    if version is None or int(version[1]) < _OLDEST:
        raise UnparsableError(f"not statistics since version {_OLDEST}: {content[:80]!r}")
    found = {
        int(number): SchedulerTimes(int(ran), int(waited), int(timeslices))
        for number, ran, waited, timeslices in _CPU_LINE.findall(content)
    }
    if not found or max(map(max, found.values())) > LARGEST_UINT:
        raise UnparsableError("no hwthread with nine counters")
    return found


class Interrupt(NamedTuple):
    """A line of /proc/interrupts: counts by hwthread in the order of the first line.

    name: a number, or such as `LOC`. chip: the controller, or what the name stands for.
    """

    name: str
    counts: tuple[int, ...]
    chip: str = ""
    devices: str = ""


def parse_interrupts(content: bytes) -> tuple[list[int], list[Interrupt]]:
    """Parse /proc/interrupts or /proc/softirqs: hwthreads, and a line for each interrupt.

    Lines without a count for each hwthread, `ERR` and `MIS`, are skipped. Raise UnparsableError.
    """
    head, *lines = content.decode("utf-8", "replace").split("\n")
    names = head.split()
    if not names or not all(name.startswith("CPU") and name[3:].isdecimal() for name in names):
        raise UnparsableError(f"not a line of hwthreads: {head[:80]!r}")
    found: list[Interrupt] = []
    for line in lines:
        name, colon, rest = line.partition(":")
        words = rest.split(None, len(names))
        counts, text = words[: len(names)], "".join(words[len(names) :]).split()
        if not colon or len(counts) < len(names) or not all(map(str.isdecimal, counts)):
            continue
        name = name.strip()
        chip = text[:1] if name.isdecimal() else text
        found.append(
            Interrupt(name, tuple(map(int, counts)), " ".join(chip), " ".join(text[len(chip) :]))
        )
    if not found:
        raise UnparsableError("no line with a count for each hwthread")
    return [int(name[3:]) for name in names], found


def parse_diskstats(content: bytes) -> list[SampleDisk]:
    """Parse lines `major minor name values...`. Raise UnparsableError for other lines."""
    disks: list[SampleDisk] = []
    for line in content.splitlines():
        fields = line.split()
        if not fields:
            continue
        try:
            name = fields[2].decode("utf-8", "replace")
            major, minor = int(fields[0]), int(fields[1])
            stats = list(map(int, fields[3:]))
        except (ValueError, IndexError) as error:
            raise UnparsableError(f"not a device with counters: {line[:80]!r}") from error
        numbers = (major, minor, *stats)
        if min(numbers) < 0 or max(numbers) > LARGEST_UINT:
            raise UnparsableError(f"out of range: {line[:80]!r}")
        disks.append(SampleDisk(name=name, major=major, minor=minor, stats=stats))
    return disks


def parse_cpuinfo(content: bytes) -> list[dict[str, str]]:
    """Return the lines `name : value` of each block.

    A block ends with an empty line, or at a second `processor` (old arm64).
    """
    blocks: list[dict[str, str]] = []
    block: dict[str, str] = {}
    for line in content.decode("utf-8", "replace").split("\n"):
        name, colon, value = line.partition(":")
        name = name.strip()
        if block and (not line.strip() or (name == "processor" and name in block)):
            blocks.append(block)
            block = {}
        if colon:
            block.setdefault(name, value.strip())
    return [*blocks, block] if block else blocks


def parse_cpu_list(content: bytes) -> list[int]:
    """Parse `0-3,8,10-11`: ascending, may be empty.

    Raise UnparsableError for other text, or for impossible cpu numbers.
    """
    cpus: list[int] = []
    text = content.removesuffix(b"\0").strip()  # a NUL ends the lists of the first Linux 5.15
    for part in text.split(b",") if text else []:
        first, dash, last = part.partition(b"-")
        start, end = _parse_cpu(first), _parse_cpu(last if dash else first)
        # Ascending ranges limit the count to the valid cpu numbers, for any length of text.
        if end < start or (cpus and start <= cpus[-1]):
            raise UnparsableError(f"not an ascending list of cpus: {text[:80]!r}")
        cpus.extend(range(start, end + 1))
    return cpus


def parse_topology_id(content: bytes) -> int:
    """Parse physical_package_id, die_id or core_id; -1 if unknown. Raise UnparsableError."""
    text = content.strip()
    if not text.removeprefix(b"-").isdigit() or len(text) > 20:
        raise UnparsableError(f"not a number: {text[:80]!r}")
    return max(-1, int(text))


def _parse_cpu(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 5 or int(digits) > LARGEST_CPU:
        raise UnparsableError(f"not a cpu: {digits[:80]!r}")
    return int(digits)


_PRESSURE_LINE = re.compile(
    rb"^(some|full) avg10=(\d{1,3}\.\d{2}) .*total=(\d{1,20})$", re.MULTILINE
)


class Pressure(NamedTuple):
    """avg10: percent, mean of about ten seconds. total: us since boot."""

    avg10: float
    total: int


def parse_pressure(content: bytes) -> dict[str, Pressure]:
    """Parse /proc/pressure/* or *.pressure. Return the lines `some` and `full`, if present.

    Lines `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`. Raise UnparsableError for other content.
    """
    found: dict[str, Pressure] = {}
    for extent, average, total in _PRESSURE_LINE.findall(content):
        pressure = Pressure(float(average), int(total))
        if pressure.avg10 > 100 or pressure.total > LARGEST_UINT:
            raise UnparsableError(f"out of range: {average!r} or {total!r}")
        found[extent.decode("ascii")] = pressure
    if not found:
        raise UnparsableError(f"neither some nor full: {content[:80]!r}")
    return found
