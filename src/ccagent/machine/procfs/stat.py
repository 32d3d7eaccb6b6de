"""Parser for /proc/stat: times of cpus, counters of events, boot time. See proc(5)."""

from __future__ import annotations

from typing import NamedTuple

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT

CPU_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Order of a cpu's times. guest and guest_nice follow, but are part of user and nice."""

_LARGEST_CPU = 65_535
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
                    if number > _LARGEST_CPU or len(ticks) < len(CPU_STATES):
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
