"""Two sockets of AMD EPYC (Zen 3) with four NUMA nodes each, Omni-Path and a bond; cgroup v2.

Composed by hand. Linux 6.8 with Slurm 23.11. The numbers of hwmon run against the sockets.
"""

from __future__ import annotations

from ccagent.agents.metrics.perf.call import CYCLES, INSTRUCTIONS, PerfEvent
from tests.machines.hardware import Cpu, cpu_files, cpuinfo
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
    rapl,
    rdma_port,
    stat,
    vmstat,
)
from tests.machines.metrics.machine import Machine
from tests.support.perf_counters import StandIn

CPUS = [
    Cpu(number=thread * 8 + core, package=core // 4, core=core % 4)
    for thread in range(2)
    for core in range(8)
]
"""cpu N and N + 8 are a core, of NUMA node N; four of these are a socket."""

RANGE = 65_532_610_987

CORE, MSRS, FABRIC = 4, 9, 15
APERF, MPERF, TSC = (PerfEvent(MSRS, number) for number in (1, 2, 0))
FLOPS = PerfEvent(CORE, 0xFF03)


def channel(number: int) -> PerfEvent:
    """Requests of a memory channel: event 0x07 + N * 0x40, of which bits 8 to 11 are apart."""
    code = 0x07 + number * 0x40
    return PerfEvent(FABRIC, (code & 0xFF) | 0x38 << 8 | (code >> 8) << 32)


def _ticks(at: Reading) -> dict[int, list[int]]:
    """Of 6000 ticks in a minute cpu N has 3000 + 30 N in user mode."""
    return {
        n: [
            at(2_000_000 + n, 3_000 + 30 * n),
            at(10_000 + n, 60),
            at(400_000 + n, 300),
            at(8_000_000 + n, 2_460 - 30 * n),
            at(50_000 + n, 120),
            at(0, 0),
            at(6_000 + n, 60),
            0,
            0,
            0,
        ]
        for n in range(16)
    }


def _memory(at: Reading) -> Files:
    node = {
        "MemTotal": 65_000_000,
        "MemFree": 40_000_000,
        "MemUsed": 25_000_000,
        "Active(file)": 4_000_000,
        "Inactive(file)": 5_000_000,
        "FilePages": 9_100_000,
        "KReclaimable": 2_000_000,
        "Slab": 2_500_000,
        "SReclaimable": 1_800_000,
        "SUnreclaim": 700_000,
    }
    sizes = {
        "MemTotal": 520_000_000,
        "MemFree": 292_000_000,
        "MemAvailable": 380_000_000,
        "Buffers": 54_321,
        "Cached": 72_800_000,
        "SwapTotal": 0,
        "SwapFree": 0,
        "Shmem": 700_000,
        "KReclaimable": 16_000_000,
        "Slab": 20_000_000,
        "HugePages_Total": 0,
        "HugePages_Free": 0,
        "Hugepagesize": 2_048,
    }
    events = {
        "pswpin": 0,
        "pswpout": 0,
        "pgfault": at(10**10, 6_000_000),
        "pgmajfault": at(60_004, 120),
        "oom_kill": 0,
    }
    files = {"proc/meminfo": meminfo(sizes), "proc/vmstat": vmstat(events)}
    for number in range(8):
        files[f"sys/devices/system/node/node{number}/meminfo"] = node_meminfo(
            number, node | {"MemFree": 40_000_000 - 1_000_000 * number}
        )
    return files


def _network(at: Reading) -> Files:
    def counters(bytes_: int, packets: int) -> list[int]:
        return [bytes_, packets, 0, 0, 0, 0, 0, 0]

    one = (counters(at(10**12, 600_000_000), at(10**9, 600_000)),
           counters(at(10**11, 60_000_000), at(10**8, 60_000)))  # fmt: skip
    two = (counters(at(10**12, 300_000_000), at(10**9, 300_000)),
           counters(at(10**11, 30_000_000), at(10**8, 30_000)))  # fmt: skip
    both = (counters(at(2 * 10**12, 900_000_000), at(2 * 10**9, 900_000)),
            counters(at(2 * 10**11, 90_000_000), at(2 * 10**8, 90_000)))  # fmt: skip
    traffic = {"lo": one, "eno1np0": one, "eno2np1": two, "bond0": both, "bond0.100": both}
    kinds = {
        "lo": (),
        "eno1np0": ("device/vendor", "master/ifindex"),
        "eno2np1": ("device/vendor", "master/ifindex"),
        "bond0": ("bonding/mode", "lower_eno1np0/ifindex", "lower_eno2np1/ifindex"),
        "bond0.100": ("lower_bond0/ifindex",),
    }
    return {"proc/net/dev": net_dev(traffic)} | interfaces(kinds)


def _disks(at: Reading) -> Files:
    counters = [at(50_000, 600), 0, at(9_000_000, 1_200_000), 16, at(60_000, 1_200), 0,
                at(8_000_000, 2_400_000), 17, 1, at(90_000, 15_000), 18, 19, 20, 21, 22, 23,
                24]  # fmt: skip
    rows = [(259, 0, "nvme0n1", counters), (259, 1, "nvme0n1p2", counters)]
    return {"proc/diskstats": diskstats(rows)} | below("sys/block", {"nvme0n1/device/model": "X"})


def _pressures(at: Reading) -> Files:
    cpu = pressure(("2.34", at(10**9, 1_200_000)), ("0.00", 0))
    memory = pressure(("1.12", at(2 * 10**9, 600_000)), ("0.56", at(10**8, 300_000)))
    disk = pressure(("5.67", at(3 * 10**9, 3_000_000)), ("3.45", at(2 * 10**8, 1_800_000)))
    interrupts = pressure(None, ("0.12", at(3 * 10**8, 60_000)))
    told = {"cpu": cpu, "memory": memory, "io": disk, "irq": interrupts}
    return {f"proc/pressure/{name}": text for name, text in told.items()}


def _power(at: Reading) -> Files:
    zones = {
        "intel-rapl:0": ("package-0", at(1_000_000_000, 12_600_000_000), RANGE),
        "intel-rapl:0:0": ("core", at(2_000_000_000, 300_000_000), RANGE),
        "intel-rapl:1": ("package-1", at(RANGE - 799_999_999, 10_800_000_000, RANGE), RANGE),
        "intel-rapl:1:0": ("core", at(3_000_000_000, 240_000_000), RANGE),
    }
    return rapl(zones)


def _temperatures() -> Files:
    driver = "sys/bus/pci/drivers/k10temp"
    return {
        **hwmon(
            3, "k10temp", [(1, "Tctl", 61_250), (3, "Tccd1", 55_000)], f"{driver}/0000:00:18.3"
        ),
        **hwmon(
            1, "k10temp", [(1, "Tctl", 63_500), (3, "Tccd1", 57_000)], f"{driver}/0000:00:19.3"
        ),
        **hwmon(2, "nvme", [(1, "Composite", 40_850)]),
    }


def _jobs(at: Reading) -> Files:
    """What Slurm makes with cgroup v2: job 9001 has limits, job 9002 has none."""
    files: Files = {}
    for job, scale in ((9001, 1), (9002, 2)):
        directory = f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_{job}"
        stalls = {"cpu": 300_000, "memory": 60_000, "io": 900_000}
        told = {
            "memory.current": 4_000_000_000 * scale,
            "memory.peak": 5_000_000_000 * scale,
            "memory.max": 8_000_000_000 if scale == 1 else "max",
            "memory.events": f"low 0\nhigh 0\nmax 7\noom 3\noom_kill {scale}\noom_group_kill 0",
            "cpu.stat": (
                f"usage_usec {at(10**12, 90_000_000 * scale)}\nuser_usec 1\nsystem_usec 2\n"
                "core_sched.force_idle_usec 0\nnr_periods 10\nnr_throttled 2\n"
                f"throttled_usec {at(5, 30_000_000 * scale)}\nnr_bursts 0\nburst_usec 0"
            ),
            "io.stat": (
                f"259:0 rbytes={at(10**9, 60_000_000 * scale)} wbytes="
                f"{at(10**8, 120_000_000 * scale)} rios=1 wios=2 dbytes=0 dios=0"
            ),
        }
        files |= below(directory, told)
        for resource, stalled in stalls.items():
            files[f"{directory}/{resource}.pressure"] = pressure(
                ("1.23", at(10**7, stalled * scale)), ("0.11", at(10**6, 7))
            )
        files |= below(f"{directory}/step_0/user/task_0", {"memory.current": 99})
    return files


def _pmus() -> Files:
    msr = {"tsc": "event=0x00", "aperf": "event=0x01", "mperf": "event=0x02"}
    core = {"event": "config:0-7,32-35", "umask": "config:8-15", "cmask": "config:24-31"}
    fabric = {"event": "config:0-7,32-35,59-60", "umask": "config:8-15"}
    return {
        **pmu("cpu", CORE, core),
        **pmu("msr", MSRS, {"event": "config:0-63"}, events=msr),
        **pmu("amd_df", FABRIC, fabric, cpus="0,4"),
        **pmu("amd_l3", 14, fabric, cpus="0-7"),
    }


def files(at: Reading) -> Files:
    """Return what is below proc and sys."""
    block = {"vendor_id": "AuthenticAMD", "cpu family": 25, "model": 1, "model name": "AMD EPYC"}
    omnipath = rdma_port(
        "hfi1_0",
        state="4: ACTIVE",
        rate="100 Gb/sec (4X EDR)",
        layer="InfiniBand",
        # In flits of eight bytes.
        port_rcv_data=at(10**12, 600_000_000),
        port_xmit_data=at(10**11, 150_000_000),
        port_rcv_packets=at(10**10, 1_200_000),
        port_xmit_packets=at(10**9, 300_000),
    )
    return {
        "proc/loadavg": "15.50 16.25 17.75 17/2345 123456\n",
        "proc/stat": stat(
            _ticks(at), interrupts=at(10**8, 1), switches=at(10**8, 1), processes=at(10**5, 1)
        ),
        "proc/cpuinfo": cpuinfo({"processor": cpu.number} | block for cpu in CPUS),
        "proc/sys/kernel/perf_event_paranoid": "-1\n",
        "proc/self/mountinfo": (
            "24 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
            "25 24 0:22 / /proc rw,nosuid shared:12 - proc proc rw\n"
            "33 24 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
            "40 24 0:52 / /home rw,relatime shared:40 - lustre 10.0.0.1@o2ib:/home rw,flock\n"
        ),
        **cpu_files(CPUS),
        **numa_nodes({number: [number, number + 8] for number in range(8)}),
        **_memory(at), **_network(at), **omnipath, **_disks(at), **_pressures(at), **_power(at),
        **_temperatures(), **_jobs(at), **_pmus(),
    }  # fmt: skip


def counters() -> StandIn:
    """Events per second; channel C of socket S has (10 + C) * (1 + S) million requests."""
    everywhere = {TSC: 2_800_000_000, MPERF: 1_400_000_000}
    of_cpus: dict[tuple[PerfEvent, int], int] = {}
    for n in range(16):
        of_cpus |= {
            (CYCLES, n): 1_600_000_000 + n * 16_000_000,
            (INSTRUCTIONS, n): 1_200_000_000 + n * 20_000_000,
            (APERF, n): 1_600_000_000 + n * 16_000_000,
            (FLOPS, n): 5_000_000_000 + n * 250_000_000,
        }
    for socket, cpu in enumerate((0, 4)):
        for number in range(8):
            of_cpus[channel(number), cpu] = (10 + number) * (1 + socket) * 1_000_000
    return StandIn(everywhere, of_cpus, room=6)


MACHINE = Machine(
    name="amd-epyc",
    hostname="g0202",
    seconds=60,
    files=files,
    counters=counters,
    spaces={"/": (4096, 100_000_000, 60_000_000, 55_000_000, 25_000_000, 24_000_000)},
)
