"""Two sockets with all that is read on demand: sensors, drives, scheduler, NUMA, NFS, BMC.

Composed by hand, in the forms of Linux 6.8, ipmitool 1.8.19, mmpmon of IBM Storage Scale 5.2 and
beegfs-ctl 7.4. Nothing of it comes from a real machine.
"""

from __future__ import annotations

import errno

from ccagent.agents.metrics.readers.cpu import SchedstatReader
from ccagent.agents.metrics.readers.hwmon import HwmonReader
from ccagent.agents.metrics.readers.ipmi import IpmiReader
from ccagent.agents.metrics.readers.memory import MemoryReader, NumastatReader
from ccagent.agents.metrics.readers.nfs import NfsMountsReader
from ccagent.agents.metrics.readers.nvme import NvmeReader
from ccagent.agents.metrics.readers.parallel_file_systems import BeegfsReader, GpfsReader
from tests.machines.hardware import Cpu, cpu_files, cpuinfo, x86_cpu
from tests.machines.metrics.files import (
    Files,
    Reading,
    below,
    diskstats,
    meminfo,
    node_meminfo,
    numa_nodes,
    pmu,
    spaced,
    stat,
    vmstat,
)
from tests.machines.metrics.machine import Machine
from tests.support.perf_counters import StandIn
from tests.support.smart_log import smart_log

CPUS = [Cpu(number=n, package=n // 2, core=n % 2) for n in range(4)]

_OF_DOMAINS = {
    "Active": 1_000, "Inactive": 2_000, "Unevictable": 300, "Mlocked": 200, "Dirty": 40,
    "Writeback": 5, "FilePages": 900_000, "Mapped": 700, "AnonPages": 5_000, "Shmem": 600,
    "KernelStack": 80, "PageTables": 90, "KReclaimable": 400, "Slab": 1_000,
    "SReclaimable": 400, "SUnreclaim": 600, "AnonHugePages": 4_096, "ShmemHugePages": 2_048,
}  # fmt: skip
_OF_NODE = {
    "CommitLimit": 9_000_000, "Committed_AS": 3_000_000, "VmallocUsed": 70_000, "Percpu": 8_000,
    "Hugetlb": 2_097_152, "DirectMap4k": 500_000, "DirectMap2M": 6_000_000,
    "DirectMap1G": 8_388_608,
}  # fmt: skip


def _scheduler(at: Reading) -> Files:
    """Of ten seconds cpu N ran for 1 + N and had tasks wait for N, in nanoseconds."""
    lines = ["version 15", "timestamp 4295567890"]
    for n in range(4):
        times = [at(10**15, (1 + n) * 10**9), at(10**14, n * 10**9), at(10**9, 1000 * n)]
        lines += [f"cpu{n} 0 0 0 0 0 0 {spaced(times)}", f"domain0 f {spaced([0] * 36)}"]
    files = {"proc/schedstat": "".join(f"{line}\n" for line in lines)}
    for n, frequency in enumerate((3_400_000, 2_100_000, 800_000, "<unknown>")):
        # The last hwthread has no driver.
        if n < 3:
            directory = f"sys/devices/system/cpu/cpu{n}/cpufreq"
            files |= below(
                directory, {"scaling_cur_freq": frequency, "scaling_governor": "performance"}
            )
    return files


def _memory(at: Reading) -> Files:
    domain = {"MemTotal": 8_000_000, "MemFree": 3_000_000, "MemUsed": 5_000_000,
              "Active(file)": 100_000, "Inactive(file)": 200_000, **_OF_DOMAINS}  # fmt: skip
    both = {name: 2 * size for name, size in _OF_DOMAINS.items() if name != "FilePages"}
    sizes = {
        "MemTotal": 16_000_000, "MemFree": 6_000_000, "MemAvailable": 9_000_000, "Buffers": 1_000,
        "Cached": 1_800_000, "SwapTotal": 0, "SwapFree": 0, **both, **_OF_NODE,
        "HugePages_Total": 1_024, "HugePages_Free": 1_000, "Hugepagesize": 2_048,
    }  # fmt: skip
    events = {"pswpin": 0, "pswpout": 0, "pgfault": at(1_000, 500), "pgmajfault": 0, "oom_kill": 0}
    files = {"proc/meminfo": meminfo(sizes), "proc/vmstat": vmstat(events)}
    for number in range(2):
        pages = {
            "numa_hit": at(10**12, 1_000_000), "numa_miss": at(7, 100 * number),
            "numa_foreign": at(8, 100 * (1 - number)), "interleave_hit": at(9, 10),
            "local_node": at(10**12, 900_000), "other_node": at(11, 100_000),
        }  # fmt: skip
        directory = f"sys/devices/system/node/node{number}"
        files[f"{directory}/meminfo"] = node_meminfo(number, domain)
        files[f"{directory}/numastat"] = "".join(f"{name} {n}\n" for name, n in pages.items())
    return files


def _disks(at: Reading) -> Files:
    """Of two drives reads, merged, sectors, ms; writes likewise; now, busy, sum; discards..."""
    first = [at(1_000, 200), at(10, 40), at(80_000, 4_000), at(900, 100), at(2_000, 100), at(20, 5),
             at(90_000, 8_000), at(800, 300), 3, at(7_000, 2_000), at(9_000, 4_000),
             at(50, 10), 0, at(6_000, 2_048), at(70, 20), at(30, 5), at(40, 10)]  # fmt: skip
    second = [at(1, 0), 0, at(8, 0), at(1, 0), at(2, 0), 0, at(8, 0), at(1, 0), 0, at(5, 0),
              at(6, 0), 0, 0, 0, 0, 0, 0]  # fmt: skip
    rows = [(259, 0, "nvme0n1", first), (259, 1, "nvme1n1", second)]
    directories = {f"{name}/device/model": "Drive" for _, _, name, _ in rows}
    controllers = {"nvme0/transport": "pcie", "nvme1/transport": "pcie", "nvme2/transport": "tcp"}
    return {
        "proc/diskstats": diskstats(rows),
        **below("sys/block", directories),
        **below("sys/class/nvme", controllers),
    }


def _sensors() -> Files:
    """A drive, a board with all kinds of sensors, and a power supply."""
    chips: list[dict[str, object]] = [
        {
            "name": "nvme", "temp1_label": "Composite", "temp1_input": 38_850,
            "temp1_max": 84_850, "temp1_min": -273_150, "temp1_crit": 89_850,
            "temp2_label": "Sensor 1", "temp2_input": 41_850, "temp2_max": 65_261_850,
        },
        {
            "name": "nct6798", "fan1_input": 1_250, "fan1_min": 300, "fan2_input": 0,
            "fan2_min": 0, "in0_input": 856, "in0_min": 0, "in0_max": 1_744,
            "in1_label": "+12V", "in1_input": 11_988, "temp1_label": "SYSTIN",
            "temp1_input": 33_000, "temp1_max": 80_000, "temp1_fault": 0,
            "temp2_label": "AUXTIN0", "temp2_input": -62_000, "temp2_fault": 1,
        },
        {
            "name": "psu", "power1_label": "Input", "power1_input": 412_500_000,
            "power1_max": 1_600_000_000, "power1_cap": 1_000_000_000, "curr1_input": 1_875,
            "curr1_crit": 9_000,
        },
    ]  # fmt: skip
    return {
        path: content
        for number, chip in enumerate(chips)
        for path, content in below(f"sys/class/hwmon/hwmon{number}", chip).items()
    }


def _nfs_mount(
    source: str, point: str, moved: str, operations: dict[str, str], version: str
) -> str:
    lines = "".join(f"\t{name:>12}: {numbers}\n" for name, numbers in operations.items())
    return (
        f"device {source} mounted on {point} with fstype nfs4 statvers={version}\n"
        "\topts:\trw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp,nconnect=4\n"
        "\tage:\t4711\n"
        "\tcaps:\tcaps=0x3ffbffff,wtmult=512,dtsize=1048576,bsize=0,namlen=255\n"
        "\tnfsv4:\tbm0=0xfdffbfff,bm1=0xf9be3e,bm2=0x68800,acl=0x3,sessions,pnfs=not configured\n"
        "\tsec:\tflavor=1,pseudoflavor=1\n"
        "\tevents:\t52 226 0 0 1 13 398 0 0 331 0 47 0 0 77 0 0 77 0 0 0 0 0 0 0 0 0\n"
        f"\tbytes:\t{moved} \n"
        f"\tRPC iostats version: {version}  p/v: 100003/4 (nfs)\n"
        "\txprt:\ttcp 832 0 1 0 11 6428 6428 0 12154 0 24 26 5726\n"
        f"\tper-op statistics\n{lines}\n"
    )


def _mounts(at: Reading) -> Files:
    """Of /home 100 reads, 50 writes and 10 others in ten seconds; /apps is idle and older."""
    operations = {
        "NULL": "1 1 0 44 24 0 0 0 0",
        "READ": spaced([at(1_298, 100), at(1_300, 103), at(2, 1), at(207_680, 16_000),
                        at(10**9, 10**8), at(6, 10), at(79_386, 200), at(79_407, 250), 0]),
        "WRITE": spaced([at(10, 50), at(10, 50), 0, at(10**7, 10**7), at(1_360, 6_800),
                         at(1, 50), at(20, 500), at(30, 600), at(0, 5)]),
        "GETATTR": spaced([at(40, 10), at(40, 10), 0, at(9_000, 2_000), at(9_600, 2_400), 0,
                           at(9, 4), at(9, 6), 0]),
    }  # fmt: skip
    moved = spaced([at(10**9, 2 * 10**8), at(10**8, 10**7), at(0, 10**6), 0, at(10**9, 10**8),
                    at(10**8, 10**7), at(10**6, 25_000), at(10**5, 2_500)])  # fmt: skip
    old = {"READ": "9 9 0 1 2 3 4 5", "WRITE": "0 0 0 0 0 0 0 0"}
    systems = (
        ("0:52", "/home", "nfs4 home:/export/home rw,vers=4.2"),
        ("0:53", "/apps\\040old", "nfs old:/apps rw,vers=3"),
        ("0:60", "/scratch", "gpfs scratch rw,relatime"),
        ("0:61", "/mnt/beeond", "beegfs beegfs_ondemand rw,relatime"),
    )
    return {
        "proc/self/mountstats": (
            "device proc mounted on /proc with fstype proc\n"
            + _nfs_mount("home:/export/home", "/home", moved, operations, "1.1")
            + _nfs_mount("old:/apps", "/apps\\040old", "1 2 3 4 5 6 7 8", old, "1.0")
        ),
        "proc/self/mountinfo": "21 96 0:20 / /proc rw,nosuid shared:5 - proc proc rw\n"
        + "".join(
            f"{40 + number} 96 {device} / {point} rw,relatime shared:{40 + number} - {what}\n"
            for number, (device, point, what) in enumerate(systems)
        ),
    }


def files(at: Reading) -> Files:
    """Return what is below proc, sys and dev."""
    ticks = {n: [at(1_000, 500), 0, at(500, 100), at(90_000, 400), *[0] * 6] for n in range(4)}
    return {
        "dev/ipmi0": "",
        "proc/stat": stat(ticks, interrupts=at(9_000, 9), switches=5, processes=7),
        "proc/loadavg": "1.00 1.00 1.00 2/90 1234\n",
        "proc/cpuinfo": cpuinfo(
            x86_cpu(cpu, model=0x8F, model_name="CPU", cores=2, siblings=2, megahertz=2000)
            for cpu in CPUS
        ),
        "proc/sys/kernel/perf_event_paranoid": "2\n",
        **cpu_files(CPUS), **numa_nodes({0: [0, 1], 1: [2, 3]}), **pmu("software", 1, {}),
        **_scheduler(at), **_memory(at), **_disks(at), **_sensors(), **_mounts(at),
    }  # fmt: skip


def smart_logs(at: Reading) -> dict[str, bytes]:
    """Return the logs of two drives: one is worn and warns, the other is new."""
    worn = [123_456_789, at(987_654_321, 20), 10**9, at(2 * 10**9, 50), 40_000, 60, 30_000, 25, 3,
            70]  # fmt: skip
    return {
        "nvme0": smart_log(warning=4, kelvin=312, spare=9, used=101, counters=worn,
                           minutes=(90, 2), sensors=[315, 0, 322]),
        "nvme1": smart_log(kelvin=299, counters=[1, 2, 3, 4, 0, 1, 5, 0, 0, 0]),
    }  # fmt: skip


def programs(at: Reading) -> dict[str, str]:
    """Return what ipmitool, mmpmon and beegfs-ctl print."""
    io = (
        f"_br_ {at(205_607_400_434, 10**9)} _bw_ {at(74_839_282_351, 5 * 10**8)}"
        f" _oc_ {at(2_377_656, 100)} _cc_ {at(2_201_576, 90)} _rdc_ {at(59_420_404, 1_000)}"
        f" _wc_ {at(18_874_626, 500)} _dir_ {at(40_971, 10)} _iu_ {at(544_768, 20)}"
    )
    meta = f"{at(56_624, 300)} [sum]  0 [ack]  {at(10, 100)} [close]  {at(11, 200)} [open]"
    storage = (
        f"{at(61_957, 70)} [sum]  {at(22_385, 50)} [ops-rd]  {at(328_770_000_000, 10**8)} [B-rd]"
        f"  {at(21_504, 20)} [ops-wr]  {at(88_080_384, 4 * 10**7)} [B-wr]"
    )
    beegfs = "beegfs-ctl --clientstats --nodetype"
    return {
        "ipmitool -c sdr list full": (
            "CPU1 Temp,42,degrees C,ok\nCPU2 Temp,44,degrees C,ok\nFAN1,8400,RPM,ok\n"
            "FAN2,,,ns\nRail, 12 V,12.06,Volts,ok\nPSU1 Iin,1.80,Amps,ok\n"
            "Pwr Consumption,392,Watts,ok\nFan Duty,35.28,percent,ok\nIntrusion,0x00,discrete,ok\n"
        ),
        "/usr/lpp/mmfs/bin/mmpmon": (
            "_fs_io_s_ _n_ 10.0.0.1 _nn_ s0301 _rc_ 0 _t_ 1795312400 _tu_ 53212 _cl_ gpfs.test"
            f" _fs_ scratch _d_ 48 {io}\n"
        ),
        f"{beegfs}=meta": f"\n====== 0 s ======\nSum:            {meta}\n",
        f"{beegfs}=storage": f"\n====== 0 s ======\nSum:            {storage}\n",
    }


def counters() -> StandIn:
    """No PMU."""
    call = StandIn()
    call.denied = errno.ENOENT
    return call


_READERS = (
    SchedstatReader, MemoryReader, NumastatReader, NfsMountsReader, NvmeReader, BeegfsReader,
    GpfsReader, HwmonReader, IpmiReader,
)  # fmt: skip

MACHINE = Machine(
    name="many-sensors",
    hostname="s0301",
    seconds=10,
    files=files,
    counters=counters,
    spaces={},
    settings={
        "readers": ["cpufreq", "disk", *(reader.name for reader in _READERS)],
        "include": ["cpufreq", *(name for reader in _READERS for name in reader.metrics)],
        "disk": {"by-device": True},
        # Units as the files have them, so that the numbers can be read off.
        "preset": "base",
    },
    programs=programs,
    smart_logs=smart_logs,
)
