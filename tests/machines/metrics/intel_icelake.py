"""Two sockets of Intel Ice Lake-SP with four cores each, InfiniBand and NFS; RHEL 8, cgroup v1.

Composed by hand. The cores have the gaps in their numbers that processors with disabled cores
have; hwmon numbers and sockets run against each other; the hardware has too few counters.
"""

from __future__ import annotations

from ccagent.agents.metrics.perf.call import CYCLES, INSTRUCTIONS, PerfEvent
from tests.machines.hardware import Cpu, cpu_files, cpuinfo, x86_cpu
from tests.machines.metrics.files import (
    Files,
    Reading,
    below,
    diskstats,
    hwmon,
    interfaces,
    meminfo,
    net_dev,
    nfs_mount,
    nfs_operations,
    node_meminfo,
    numa_nodes,
    pmu,
    rapl,
    rdma_port,
    stat,
    vmstat,
)
from tests.machines.metrics.machine import Machine
from tests.support.perf_counters import StandIn

CORES = ((0, 1, 4, 6), (0, 2, 3, 5))
"""The numbers of the cores of each socket."""

CPUS = [
    Cpu(number=thread * 8 + socket * 4 + index, package=socket, core=core)
    for thread in range(2)
    for socket in range(2)
    for index, core in enumerate(CORES[socket])
]
"""cpu0-3 and 8-11 are of socket 0, cpu4-7 and 12-15 of socket 1."""

PACKAGE_RANGE = 262_143_328_850
DRAM_RANGE = 65_712_999_613

CORE, MSRS, IMC = 4, 9, 20
APERF, MPERF, TSC = (PerfEvent(MSRS, number) for number in (1, 2, 0))
READS, WRITES = 0x0F04, 0x3004
FORMAT = {"event": "config:0-7", "umask": "config:8-15", "edge": "config:18", "inv": "config:23"}


def _ticks(at: Reading) -> dict[int, list[int]]:
    """Of 1000 ticks in ten seconds cpu N has 400 + 10 N in user mode."""
    return {
        n: [
            at(1_000_000 + n, 400 + 10 * n),
            at(20_000 + n, 5),
            at(300_000 + n, 60 + 5 * n),
            at(7_000_000 + n, 490 - 15 * n),
            at(40_000 + n, 20),
            at(5_000 + n, 10),
            at(6_000 + n, 15),
            0,
            # Of guests: user has them already.
            at(100_000 + n, 100),
            0,
        ]
        for n in range(16)
    }


def _memory(at: Reading) -> Files:
    half = {
        "MemTotal": 131_921_408,
        "MemFree": 60_000_000,
        "MemUsed": 71_921_408,
        "Active": 21_000_000,
        "Inactive": 9_000_000,
        "Active(anon)": 16_000_000,
        "Inactive(anon)": 2_000_000,
        "Active(file)": 5_000_000,
        "Inactive(file)": 7_000_000,
        "Unevictable": 0,
        "FilePages": 12_400_000,
        "Shmem": 400_000,
        "Slab": 3_000_000,
        "SReclaimable": 1_900_000,
        "SUnreclaim": 1_100_000,
    }
    other = half | {"MemFree": 70_000_000, "MemUsed": 61_921_408, "SReclaimable": 1_500_000}
    sizes = {
        "MemTotal": 263_842_816,
        "MemFree": 130_000_000,
        "MemAvailable": 156_000_000,
        "Buffers": 12_345,
        "Cached": 24_800_000,
        "SwapCached": 1_000,
        "Active(file)": 10_000_000,
        "Inactive(file)": 14_000_000,
        "SwapTotal": 4_194_300,
        "SwapFree": 4_000_300,
        "Shmem": 800_000,
        "Slab": 5_600_000,
        "SReclaimable": 3_400_000,
        "SUnreclaim": 2_200_000,
        "HugePages_Total": 1_024,
        "HugePages_Free": 512,
        "HugePages_Rsvd": 0,
        "HugePages_Surp": 0,
        "Hugepagesize": 2_048,
        "DirectMap4k": 1_000_000,
    }
    events = {
        "pswpin": at(70_001, 250),
        "pswpout": at(80_002, 500),
        "pgfault": at(900_000_003, 123_450),
        "pgmajfault": at(60_004, 50),
        "oom_kill": at(4, 1),
    }
    return {
        "proc/meminfo": meminfo(sizes),
        "proc/vmstat": vmstat(events),
        "sys/devices/system/node/node0/meminfo": node_meminfo(0, half),
        "sys/devices/system/node/node1/meminfo": node_meminfo(1, other),
    }


def _network(at: Reading) -> Files:
    idle = [0] * 8
    inside = [at(10**9, 10**8), at(10**6, 10**5), *idle[2:]]
    received = [at(4_294_900_000, 12_500_000), at(7_000_000, 20_000), at(5, 10), at(6, 20)]
    sent = [at(88_000_000, 2_500_000), at(8_000_000, 10_000), at(7, 30), at(8, 40)]
    traffic = {
        "lo": (inside, inside),
        "eno1": ([*received, 0, 0, 0, 9], [*sent, 0, 0, 0, 0]),
        "eno2": (idle, idle),
        "ib0": (
            [at(77_000_000_000, 50_000_000), at(9_000_000, 30_000), 0, 0, 0, 0, 0, 0],
            [at(66_000_000_000, 10_000_000), at(6_000_000, 5_000), 0, 0, 0, 0, 0, 0],
        ),
        "docker0": (inside, inside),
    }
    kinds = {
        "lo": (), "eno1": ("device/vendor",), "eno2": ("device/vendor",),
        "ib0": ("device/vendor",), "docker0": ("bridge/bridge_id",),
    }  # fmt: skip
    return {"proc/net/dev": net_dev(traffic)} | interfaces(kinds)


def _infiniband(at: Reading) -> Files:
    return rdma_port(
        "mlx5_0",
        state="4: ACTIVE",
        rate="200 Gb/sec (4X HDR)",
        layer="InfiniBand",
        # In words of four bytes, and wider than 32 bits: the first one grows beyond them.
        port_rcv_data=at(4_294_000_000, 2_500_000_000),
        port_xmit_data=at(9_000_000_000_000, 1_250_000_000),
        port_rcv_packets=at(70_000_000_000, 1_000_000),
        port_xmit_packets=at(60_000_000_000, 500_000),
    ) | rdma_port(
        "mlx5_1",
        state="1: DOWN",
        rate="10 Gb/sec (4X SDR)",
        layer="InfiniBand",
        port_rcv_data=0,
        port_xmit_data=0,
        port_rcv_packets=0,
        port_xmit_packets=0,
    )


def _nfs(at: Reading) -> Files:
    # By number: null, getattr, setattr, lookup, access, readlink, read, write. They have 32 bits.
    three = [at(7, 0), at(100_001, 110), at(102, 20), at(103, 30), at(104, 40), at(105, 0),
             at(4_294_967_290, 50, 0xFFFF_FFFF), at(107, 60), *[3] * 14]  # fmt: skip
    # null, read, write, commit, open...
    four = [at(8, 0), at(200_001, 700), at(202, 800), at(203, 90), at(204, 10), *[4] * 54]
    home = ("home:/export/home", "4.1", at(10**11, 400_000_000), at(10**10, 100_000_000))
    mounts = [
        ("home:/export/home", "/home", *home[1:]),
        # The same file system once more: it isn't counted twice.
        ("home:/export/home", "/root/home", *home[1:]),
        ("old:/apps", "/apps", "3", at(5 * 10**9, 50_000_000), at(4 * 10**9, 25_000_000)),
    ]
    local = ("proc", "/proc", "proc"), ("/dev/mapper/rhel-root", "/", "xfs")
    statistics = "".join(f"device {s} mounted on {p} with fstype {t}\n" for s, p, t in local)
    return {
        "proc/net/rpc/nfs": nfs_operations(at(40, 30), {3: three, 4: four}),
        "proc/self/mountstats": statistics + "".join(nfs_mount(*mount) for mount in mounts),
        "proc/self/mountinfo": (
            "21 96 0:20 / /proc rw,nosuid,nodev,noexec,relatime shared:5 - proc proc rw\n"
            "96 1 253:0 / / rw,relatime shared:1 - xfs /dev/mapper/rhel-root rw,attr2\n"
            "30 96 8:1 / /boot rw,relatime shared:29 - xfs /dev/sda1 rw,attr2\n"
            "31 96 259:1 / /scratch rw,relatime shared:30 - ext4 /dev/nvme0n1p1 rw\n"
            "40 96 0:52 / /home rw,relatime shared:40 - nfs4 home:/export/home rw,vers=4.1\n"
            "41 96 0:52 / /root/home rw,relatime shared:41 - nfs4 home:/export/home rw,vers=4.1\n"
            "42 96 0:53 / /apps rw,relatime shared:42 - nfs old:/apps rw,vers=3\n"
        ),
    }


def _disks(at: Reading) -> Files:
    sda = [at(5_000, 100), 11, at(900_000, 20_480), 12, at(6_000, 300), 13, at(800_000, 40_960),
           14, 0, at(70_000, 2_500), 15, 0, 0, 0, 0]  # fmt: skip
    nvme = [at(50_000, 900), 0, at(9_000_000, 204_800), 16, at(60_000, 1_700), 0,
            at(8_000_000, 409_600), 17, 1, at(90_000, 750), 18, 19, 20, 21, 22]  # fmt: skip
    rows = [
        (8, 0, "sda", sda), (8, 1, "sda1", sda), (8, 2, "sda2", sda), (253, 0, "dm-0", sda),
        (259, 0, "nvme0n1", nvme), (259, 1, "nvme0n1p1", nvme),
    ]  # fmt: skip
    directories = {
        "sda/device/vendor": "ATA     ", "sda/sda1/partition": 1, "dm-0/dm/name": "rhel-root",
        "dm-0/slaves/sda2/partition": 2, "nvme0n1/device/model": "Dell Ent NVMe",
    }  # fmt: skip
    return {"proc/diskstats": diskstats(rows)} | below("sys/block", directories)


def _power(at: Reading) -> Files:
    zones = {
        "intel-rapl:0": ("package-0", at(11_000_000_000, 2_000_000_000), PACKAGE_RANGE),
        "intel-rapl:0:0": ("dram", at(22_000_000_000, 150_000_000), DRAM_RANGE),
        # It wraps: 1.5 kJ later it is at 1.1 kJ.
        "intel-rapl:1": (
            "package-1",
            at(PACKAGE_RANGE - 399_999_999, 1_500_000_000, PACKAGE_RANGE),
            PACKAGE_RANGE,
        ),
        "intel-rapl:1:0": ("dram", at(33_000_000_000, 125_000_000), DRAM_RANGE),
        "intel-rapl:2": ("psys", at(44_000_000_000, 5_000_000_000), PACKAGE_RANGE),
    }
    return rapl(zones)


def _temperatures() -> Files:
    files = hwmon(0, "nvme", [(1, "Composite", 38_850)])
    for socket, number in ((0, 2), (1, 1)):
        cores = [(core + 2, f"Core {core}", 50_000 + 10_000 * socket + 1_000 * core)
                 for core in CORES[socket]]  # fmt: skip
        package = (1, f"Package id {socket}", 57_000 + 10_000 * socket)
        files |= hwmon(
            number, "coretemp", [package, *cores], f"sys/devices/platform/coretemp.{socket}"
        )
    return files


def _jobs(at: Reading) -> Files:
    """What Slurm makes with cgroup v1: job 4711 has a limit, job 4712 has none."""
    root = "sys/fs/cgroup"
    files: Files = {}
    for job, uid, scale in (("job_4711", "uid_1001", 1), ("job_4712", "uid_1002", 3)):
        path = f"slurm/{uid}/{job}"
        files |= below(
            f"{root}/memory/{path}",
            {
                "memory.usage_in_bytes": 8_000_000_000 * scale,
                "memory.max_usage_in_bytes": 9_000_000_000 * scale,
                "memory.limit_in_bytes": 16_000_000_000 if scale == 1 else 9223372036854771712,
                "memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {scale - 1}",
            },
        )
        for controller in ("cpu", "cpuacct"):
            # Both are links to cpu,cpuacct.
            told = {
                "cpuacct.usage": at(5 * 10**12, 40_000_000_000 * scale),
                "cpu.stat": f"nr_periods 0\nnr_throttled 0\nthrottled_time {at(0, 10**9 * scale)}",
            }
            files |= below(f"{root}/{controller}/{path}", told)
    return files


def _pmus() -> Files:
    msr = {"tsc": "event=0x00", "aperf": "event=0x01", "mperf": "event=0x02"}
    files = pmu("cpu", CORE, FORMAT) | pmu("msr", MSRS, {"event": "config:0-63"}, events=msr)
    files |= pmu("software", 1, {}) | pmu("uncore_imc_free_running_0", 29, FORMAT, cpus="0,4")
    for number in range(2):
        files |= pmu(f"uncore_imc_{number}", IMC + number, FORMAT, cpus="0,4")
    return files


def files(at: Reading) -> Files:
    """Return what is below proc and sys."""
    model = "Intel(R) Xeon(R) Silver 4309Y CPU @ 2.40GHz"
    return {
        "proc/loadavg": "12.34 11.25 9.75 9/1234 987654\n",
        "proc/stat": stat(
            _ticks(at),
            interrupts=at(88_000_000, 54_320),
            switches=at(99_000_000, 98_760),
            processes=at(77_000, 120),
        ),
        "proc/cpuinfo": cpuinfo(
            x86_cpu(cpu, model=0x6A, model_name=model, cores=4, siblings=8, megahertz=2400)
            for cpu in CPUS
        ),
        "proc/sys/kernel/perf_event_paranoid": "0\n",
        **cpu_files(CPUS),
        **numa_nodes({0: [0, 1, 2, 3, 8, 9, 10, 11], 1: [4, 5, 6, 7, 12, 13, 14, 15]}),
        **_memory(at), **_network(at), **_infiniband(at), **_nfs(at), **_disks(at), **_power(at),
        **_temperatures(), **_jobs(at), **_pmus(),
    }  # fmt: skip


def counters() -> StandIn:
    """Events per second: cycles at 2 GHz + N * 10 MHz, and so on.

    Seven counters have room at a time, of the ten that are wanted besides those of msr.
    """

    def event(umask: int) -> PerfEvent:
        return PerfEvent(CORE, umask << 8 | 0xC7)

    everywhere = {
        TSC: 2_400_000_000,
        MPERF: 1_200_000_000,
        event(0x04): 2_000_000,
        event(0x10): 3_000_000,
        event(0x40): 100_000_000,
        event(0x02): 4_000_000,
        event(0x08): 5_000_000,
        event(0x20): 6_000_000,
        event(0x80): 7_000_000,
    }
    of_cpus: dict[tuple[PerfEvent, int], int] = {}
    for n in range(16):
        of_cpus |= {
            (CYCLES, n): 2_000_000_000 + n * 10_000_000,
            (INSTRUCTIONS, n): 3_000_000_000 + n * 30_000_000,
            (APERF, n): 1_600_000_000 + n * 5_000_000,
            (event(0x01), n): 1_000_000 * (1 + n),
        }
    of_cpus |= {
        (PerfEvent(IMC, READS), 0): 200_000_000, (PerfEvent(IMC, WRITES), 0): 50_000_000,
        (PerfEvent(IMC + 1, READS), 0): 210_000_000, (PerfEvent(IMC + 1, WRITES), 0): 60_000_000,
        (PerfEvent(IMC, READS), 4): 100_000_000, (PerfEvent(IMC, WRITES), 4): 30_000_000,
        (PerfEvent(IMC + 1, READS), 4): 110_000_000, (PerfEvent(IMC + 1, WRITES), 4): 40_000_000,
    }  # fmt: skip
    return StandIn(everywhere, of_cpus, room=7)


MACHINE = Machine(
    name="intel-icelake",
    hostname="f0101",
    seconds=10,
    files=files,
    counters=counters,
    spaces={
        "/": (4096, 10_000_000, 4_000_000, 4_000_000, 20_000_000, 19_000_000),
        "/scratch": (4096, 400_000_000, 300_000_000, 280_000_000, 100_000_000, 90_000_000),
    },
    settings={
        "include": [
            "context_switches", "interrupts", "forks", "cpu_load5", "cpu_load15", "proc_run",
            "proc_total", "psys_power", "ib_rate", "ib_ports_active", "perf_counted",
            "nfs3_getattr", "nfs3_reads", "nfs3_writes", "nfs4_reads", "nfs4_writes", "nfs4_commit",
        ]
    },
)  # fmt: skip
