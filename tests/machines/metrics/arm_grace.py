"""One socket of NVIDIA Grace (Arm Neoverse V2) with four cores; pages of 64 KiB.

Composed by hand. Linux 6.5 without RAPL, with cgroup v2 and no job. It has clocks by way of
cppc_cpufreq, a power meter of ACPI and zones of temperature that say no processor.
"""

from __future__ import annotations

from ccagent.agents.metrics.perf.call import CYCLES, INSTRUCTIONS, PerfEvent
from tests.machines.hardware import Cpu, arm_cpu, cpu_files, cpuinfo
from tests.machines.metrics.files import (
    Files,
    Reading,
    below,
    diskstats,
    hwmon,
    interfaces,
    meminfo,
    net_dev,
    node_meminfo,
    numa_nodes,
    pmu,
    pressure,
    stat,
    vmstat,
)
from tests.machines.metrics.machine import Machine
from tests.support.perf_counters import StandIn

CPUS = [Cpu(number=number, package=36, core=number) for number in range(4)]
"""The number of the socket is one that firmware gave, as on many machines of this kind."""

CORE, FABRIC = 10, 40
AWAKE, SCALABLE, FIXED = (PerfEvent(CORE, number) for number in (0x4004, 0x80C0, 0x80C1))
READ, WRITTEN = PerfEvent(FABRIC, 0x1A5), PerfEvent(FABRIC, 0x1DB)


def _ticks(at: Reading) -> dict[int, list[int]]:
    """Of 3000 ticks in half a minute cpu N has 1500 + 150 N in user mode."""
    return {
        n: [
            at(3_000_000 + n, 1_500 + 150 * n), 0, at(10_000 + n, 90 + 15 * n),
            at(9_000_000 + n, 1_350 - 165 * n), at(500 + n, 30), 0, at(600 + n, 30), 0, 0, 0,
        ]
        for n in range(4)
    }  # fmt: skip


def _memory(at: Reading) -> Files:
    node = {
        "MemTotal": 120_000_000,
        "MemFree": 80_000_000,
        "Active(file)": 6_000_000,
        "Inactive(file)": 9_000_000,
        "KReclaimable": 3_000_000,
        "SReclaimable": 2_500_000,
    }
    sizes = {
        "MemTotal": 120_000_000,
        "MemFree": 80_000_000,
        "MemAvailable": 96_000_000,
        "Buffers": 64,
        "Cached": 15_300_000,
        "SwapTotal": 8_388_544,
        "SwapFree": 8_000_000,
        "Shmem": 256_000,
        "Slab": 4_000_000,
        "HugePages_Total": 4,
        "HugePages_Free": 1,
        "Hugepagesize": 524_288,
    }
    events = {
        "pswpin": at(100, 30),
        "pswpout": at(200, 60),
        "pgfault": at(10**9, 300_000),
        "pgmajfault": at(1_000, 90),
        "oom_kill": at(1, 3),
    }
    return {
        "proc/meminfo": meminfo(sizes),
        "proc/vmstat": vmstat(events),
        "sys/devices/system/node/node0/meminfo": node_meminfo(0, node),
    }


def files(at: Reading) -> Files:
    """Return what is below proc and sys."""
    card = (
        [at(10**10, 30_000_000), at(10**7, 60_000), 0, at(3, 60), 0, 0, 0, 0],
        [at(10**9, 6_000_000), at(10**6, 30_000), 0, 0, 0, 0, 0, 0],
    )
    disk = [at(50_000, 300), 0, at(9_000_000, 600_000), 16, at(60_000, 150), 0,
            at(8_000_000, 300_000), 17, 1, at(90_000, 3_000), 18, 19, 20, 21, 22, 23,
            24]  # fmt: skip
    formats = {"event": "config:0-15", "long": "config1:0", "rdpmc": "config1:1"}
    cppc = {"scaling_driver": "cppc_cpufreq", "scaling_cur_freq": 3_411_000}
    meter = {
        "power1_average": 180_000_000,
        "power1_average_interval": 50,
        "power1_oem_info": "Grace Power Socket 0",
    }
    return {
        "proc/loadavg": "3.25 2.50 1.75 4/567 8910\n",
        "proc/stat": stat(
            _ticks(at), interrupts=at(10**8, 1), switches=at(10**8, 1), processes=at(10**5, 1)
        ),
        "proc/cpuinfo": cpuinfo(arm_cpu(n, implementer=0x41, part=0xD4F) for n in range(4)),
        "proc/self/mountinfo": (
            "24 1 259:2 / / rw,relatime shared:1 - btrfs /dev/nvme0n1p2 rw,ssd\n"
        ),
        "proc/net/dev": net_dev({"lo": card, "enP5p9s0": card}),
        "proc/diskstats": diskstats([(259, 0, "nvme0n1", disk)]),
        "proc/pressure/cpu": pressure(("0.10", at(10**7, 150_000)), ("0.00", 0)),
        "proc/pressure/memory": pressure(("0.00", at(10**5, 0)), ("0.00", at(10**4, 0))),
        "proc/pressure/io": pressure(("0.20", at(10**6, 75_000)), ("0.15", at(10**6, 45_000))),
        "sys/fs/cgroup/system.slice/slurmstepd.scope/system/cgroup.procs": "1234\n",
        **interfaces({"lo": (), "enP5p9s0": ("device/vendor",)}),
        **below("sys/block", {"nvme0n1/device/model": "SAMSUNG MZ1L21T9HCLS"}),
        **cpu_files(CPUS),
        **below("sys/devices/system/cpu/cpu0/cpufreq", cppc),
        **numa_nodes({0: range(4)}),
        **_memory(at),
        **hwmon(0, "power_meter", []),
        **below("sys/class/hwmon/hwmon0/device", meter),
        **hwmon(1, "acpitz", [(1, "", 45_500)]),
        **pmu("armv8_pmuv3_0", CORE, formats),
        **pmu("nvidia_scf_pmu_0", FABRIC, {"event": "config:0-31"}, cpus="0"),
    }


def counters() -> StandIn:
    """Events per second: awake for a fifth of the time at 3 GHz + N * 100 MHz."""
    of_cpus: dict[tuple[PerfEvent, int], int] = {}
    for n in range(4):
        of_cpus |= {
            (CYCLES, n): 600_000_000 + n * 20_000_000,
            (INSTRUCTIONS, n): 1_200_000_000 + n * 70_000_000,
            (SCALABLE, n): 4_000_000_000 + n * 100_000_000,
            (FIXED, n): 500_000_000 + n * 10_000_000,
        }
    everywhere = {AWAKE: 200_000_000, READ: 2_000_000_000, WRITTEN: 16_000_000_000}
    call = StandIn(everywhere, of_cpus)
    call.rate_of_time = 1e9
    return call


MACHINE = Machine(
    name="arm-grace",
    hostname="h0303",
    seconds=30,
    files=files,
    counters=counters,
    # btrfs has no number of inodes.
    spaces={"/": (65536, 7_500_000, 5_000_000, 4_950_000, 0, 0)},
    page_size=65_536,
    settings={"preset": "spec"},
)
