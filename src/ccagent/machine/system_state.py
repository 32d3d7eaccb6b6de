"""Reader of the state of the node as a whole: CPUs, memory, load, disks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.clock import timestamp
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import (
    KernelStat,
    Load,
    compute_used_memory,
    parse_diskstats,
    parse_kernel_stat,
    parse_loadavg,
    parse_meminfo,
)
from ccagent.records.envelopes import NO_FLOAT, SampleDisk, SampleSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from ccagent.machine.node import Node

    T = TypeVar("T")

_LARGEST_PID_MAX = 4_194_304


class SystemState(NamedTuple):
    """The system record, and the boot time in seconds since 1970."""

    boot: int
    system: SampleSystem


def compute_busy_seconds(times: dict[int, list[int]], clock_ticks: int) -> list[int]:
    """Return the busy seconds since boot by cpu; 0 for an offline cpu.

    Busy time is user, nice, system, irq and softirq. It does not include steal.
    """
    busy = {
        cpu: (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) // clock_ticks
        for cpu, ticks in times.items()
    }
    return [busy.get(cpu, 0) for cpu in range(max(busy, default=-1) + 1)]


def read_system(node: Node, errors: list[str]) -> SystemState:
    """Read all files. An unreadable file leaves its fields empty, and adds to `errors`."""

    def read(path: str, parse: Callable[[bytes], T], otherwise: T) -> T:
        try:
            return read_parsed(node, path, parse)
        except NotHereError:
            return otherwise
        except CcagentError as error:
            errors.append(str(error))
        return otherwise

    stat = read("proc/stat", parse_kernel_stat, KernelStat({}, {}, {}, {}, 0))
    load = read("proc/loadavg", parse_loadavg, Load(NO_FLOAT, NO_FLOAT, NO_FLOAT, 0, 0))
    boot = stat.boot or max(0, int(node.boot_time()))
    disks: list[SampleDisk] = read("proc/diskstats", parse_diskstats, [])
    system = SampleSystem(
        boot=timestamp(boot),
        cpus=compute_busy_seconds(stat.times, node.clock_ticks),
        disks=[disk for disk in disks if any(disk.stats)],  # not unused ones, such as loop devices
        used_memory=read("proc/meminfo", lambda text: compute_used_memory(parse_meminfo(text)), 0),
        load1=load.load1 or NO_FLOAT,
        load5=load.load5 or NO_FLOAT,
        load15=load.load15 or NO_FLOAT,
        runnable_entities=load.runnable,
        existing_entities=load.existing,
    )
    return SystemState(boot, system)


def pid_max(node: Node) -> int:
    """Read /proc/sys/kernel/pid_max. Return Linux's maximum if it can't be read."""
    try:
        return int(node.read("proc/sys/kernel/pid_max"))
    except (CcagentError, ValueError):
        return _LARGEST_PID_MAX
