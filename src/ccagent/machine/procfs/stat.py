"""Parsers for /proc/stat: times of cpus, counters of events, boot time. See proc(5)."""

from __future__ import annotations

import re
from typing import NamedTuple

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT

CPU_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Order of a cpu's times. guest and guest_nice follow, but are part of user and nice."""

_LARGEST_CPU = 65_535
_NUMBERS = (b"ctxt", b"intr", b"processes", b"btime")
_CPU = re.compile(rb"^cpu([0-9]{1,5}) +([0-9 ]+)$", re.MULTILINE)
_EVENT = re.compile(
    rb"^(ctxt|btime|processes|procs_running|procs_blocked|intr) ([0-9]{1,20})", re.MULTILINE
)


class KernelStat(NamedTuple):
    """Content of /proc/stat.

    times: clock ticks in each of CPU_STATES, by online cpu. events: `ctxt`, `intr` and
    `processes` since boot. boot: seconds since 1970, 0 if unknown.
    """

    times: dict[int, list[int]]
    events: dict[str, int]
    boot: int


def parse_kernel_stat(content: bytes) -> KernelStat:
    """Parse the lines `cpuN`, `intr`, `ctxt`, `btime` and `processes`. Raise UnparsableError.

    The line `cpu` is skipped: it includes cpus that are offline now.
    """
    times: dict[int, list[int]] = {}
    events: dict[str, int] = {}
    try:
        for line in content.split(b"\n"):
            if line.startswith(b"cpu"):
                if line[3:4].isdigit():
                    fields = line.split()
                    number = int(fields[0][3:])
                    ticks = list(map(int, fields[1:9]))
                    if number > _LARGEST_CPU or len(ticks) < len(CPU_STATES):
                        raise UnparsableError(f"not a cpu with eight times: {line[:80]!r}")
                    if min(ticks) < 0 or max(ticks) > LARGEST_UINT:
                        raise UnparsableError(f"a time is out of range: {line[:80]!r}")
                    times[number] = ticks
                continue
            # `intr` continues with a number for each possible interrupt.
            name, *rest = line.split(None, 2)[:2] or (b"",)
            if name in _NUMBERS:
                value = events[name.decode("ascii")] = int(rest[0])
                if not 0 <= value <= LARGEST_UINT:
                    raise UnparsableError(f"out of range: {line[:80]!r}")
    except (ValueError, IndexError) as error:
        raise UnparsableError(str(error)) from error
    boot = events.pop("btime", 0)
    if not 0 <= boot < 1 << 40:
        raise UnparsableError(f"btime {boot} is out of range")
    return KernelStat(times, events, boot)


def parse_cpu_times(content: bytes) -> dict[int, tuple[int, ...]]:
    """Return the times in clock ticks by online cpu: CPU_STATES, guest and guest_nice.

    Columns that the kernel lacks are 0. Raise UnparsableError for other lines.
    """
    times: dict[int, tuple[int, ...]] = {}
    for number, text in _CPU.findall(content):
        ticks = tuple(map(int, text.split()[:10]))
        if len(ticks) < len(CPU_STATES) or max(ticks) > LARGEST_UINT:
            raise UnparsableError(f"not a cpu with eight times: {text[:80]!r}")
        times[int(number)] = ticks + (0,) * (10 - len(ticks))
    return times


def parse_events(content: bytes) -> dict[str, int]:
    """Return those of ctxt, btime, processes, procs_running, procs_blocked, intr that exist."""
    return {name.decode("ascii"): int(number) for name, number in _EVENT.findall(content)}
