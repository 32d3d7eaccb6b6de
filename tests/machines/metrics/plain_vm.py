"""A virtual machine with nothing but a card and a disk: no PMU, no sensors, no NUMA, no Slurm.

Composed by hand. Linux 3.10, which knows neither MemAvailable nor oom_kill; another machine on
the same host takes time.
"""

from __future__ import annotations

import errno

from tests.machines.hardware import Cpu, cpu_files, cpuinfo, x86_cpu
from tests.machines.metrics.files import (
    Files,
    Reading,
    below,
    diskstats,
    interfaces,
    meminfo,
    net_dev,
    pmu,
    stat,
    vmstat,
)
from tests.machines.metrics.machine import Machine
from tests.support.perf_counters import StandIn

CPUS = [Cpu(number=0, package=0, core=0)]


def files(at: Reading) -> Files:
    """Return what is below proc and sys."""
    ticks = [at(1_000, 200), at(1, 0), at(500, 100), at(90_000, 600), at(100, 50), at(0, 0),
             at(20, 5), at(300, 45), 0, 0]  # fmt: skip
    card = (
        [at(10**6, 100_000), at(1_000, 200), 0, 0, 0, 0, 0, 0],
        [at(10**5, 50_000), at(900, 100), 0, 0, 0, 0, 0, 0],
    )
    # As before Linux 4.18.
    disk = [at(500, 10), 1, at(9_000, 160), 2, at(600, 40), 3, at(8_000, 640), 4, 0,
            at(700, 100), 5]  # fmt: skip
    sizes = {
        "MemTotal": 1_800_000,
        "MemFree": 600_000,
        "Buffers": 50_000,
        "Cached": 450_000,
        "SwapTotal": 0,
        "SwapFree": 0,
        "Shmem": 9_000,
        "Slab": 80_000,
    }
    events = {"pswpin": 0, "pswpout": 0, "pgfault": at(10_000, 2_500), "pgmajfault": at(100, 10)}
    processor = x86_cpu(CPUS[0], model=0x55, model_name="QEMU", cores=1, siblings=1, megahertz=2500)
    return {
        "proc/loadavg": "0.05 0.03 0.01 1/90 1234\n",
        "proc/stat": stat({0: ticks}, interrupts=at(9_000, 9), switches=5, processes=7),
        "proc/meminfo": meminfo(sizes),
        "proc/vmstat": vmstat(events),
        "proc/cpuinfo": cpuinfo([processor]),
        "proc/net/dev": net_dev({"lo": card, "eth0": card}),
        "proc/diskstats": diskstats([(252, 0, "vda", disk), (252, 1, "vda1", disk)]),
        "proc/self/mountinfo": "17 1 252:1 / / rw,relatime shared:1 - xfs /dev/vda1 rw,attr2\n",
        "proc/self/mountstats": "device /dev/vda1 mounted on / with fstype xfs\n",
        "proc/sys/kernel/perf_event_paranoid": "2\n",
        **interfaces({"lo": (), "eth0": ("device/vendor",)}),
        **below("sys/block", {"vda/device/vendor": "0x1af4"}),
        **cpu_files(CPUS, core_cpus=False),
        **pmu("software", 1, {}),
    }


def counters() -> StandIn:
    """No PMU: the kernel refuses every event."""
    call = StandIn()
    call.denied = errno.ENOENT
    return call


MACHINE = Machine(
    name="plain-vm",
    hostname="login1",
    seconds=10,
    files=files,
    counters=counters,
    spaces={"/": (4096, 2_000_000, 1_500_000, 1_500_000, 1_000_000, 960_000)},
)
