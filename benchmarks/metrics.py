"""Cost of a tick of the agent `metrics` on a large node.

    python benchmarks/metrics.py [--hwthreads 256,512] [--jobs 40] [--ticks 40]
    python benchmarks/metrics.py --this-machine [--ticks 40]

Writes the files of a node below a temporary directory: two sockets of Sapphire Rapids with the
given hwthreads, RAPL, HDR InfiniBand, NFS, disks and Slurm jobs. Increases all counters between
ticks. Measures ticks in a new process, from reading to the bytes of the messages. Files on a disk
replace the kernel's, and a table replaces its event counters; the kernel's cost of generating them
is additional. The ratio is to plainly reading the same files with the same functions.

`--this-machine` measures ticks on the files of this machine instead: of the default set, and of a
set like cc-metric-collector's default configuration (its preset; processor, load, memory, network,
local disks and file systems). Each is measured with 50 ms and with a second (cold caches) between
ticks, in turns with a loop of 10,000 additions that shows the present speed of the machine.

CPU is user and system time, the median of the ticks. Memory is the resident set after the last
tick. Machines differ and are noisy: compare the rows of one run with each other.
"""

from __future__ import annotations

import argparse
import errno
import json
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.agents.metrics.perf.call import PerfCall, PerfEvent
    from ccagent.agents.metrics.readers.base import ReaderSettings

SOCKETS = 2
DOMAINS = 8
RAW_COUNTERS = 4
RAW = 4
INCLUDED = ("cpu_load5", "cpu_load15", "proc_run", "proc_total", "context_switches", "forks",
            "interrupts", "ib_rate", "perf_counted")  # fmt: skip


def machine(hwthreads: int, jobs: int) -> dict[str, str]:
    """Return the contents of constant files."""
    devices, cpus = "sys/bus/event_source/devices", "sys/devices/system/cpu"
    memory = "MemTotal: 1000000 kB\nMemFree: 1000 kB\nMemAvailable: 500000 kB\n"
    files = {
        "proc/cpuinfo": "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 143\n\n" * hwthreads,
        "proc/loadavg": "1.00 2.00 3.00 4/500 99\n",
        "proc/meminfo": f"{memory}Buffers: 5 kB\nCached: 6 kB\nShmem: 7 kB\nSlab: 8 kB\n"
        "SwapTotal: 9 kB\nSwapFree: 9 kB\nHugePages_Total: 0\nHugePages_Free: 0\n"
        "Hugepagesize: 2048 kB\n",
        "proc/self/mountinfo": "36 35 0:50 / /home rw - nfs4 server:/home rw\n",
        f"{cpus}/online": f"0-{hwthreads - 1}\n",
        f"{devices}/cpu/type": f"{RAW}\n",
        f"{devices}/cpu/format/event": "config:0-7\n",
        f"{devices}/cpu/format/umask": "config:8-15\n",
        f"{devices}/msr/type": "9\n",
        f"{devices}/msr/format/event": "config:0-63\n",
    }
    for number, name in enumerate(("tsc", "aperf", "mperf")):
        files[f"{devices}/msr/events/{name}"] = f"event={number:#04x}\n"
    cores = hwthreads // 2
    for number in range(hwthreads):
        socket, core = divmod(number % cores, cores // SOCKETS)
        topology = f"{cpus}/cpu{number}/topology"
        files |= {f"{topology}/physical_package_id": f"{socket}\n", f"{topology}/die_id": "0\n",
                  f"{topology}/core_id": f"{core}\n"}  # fmt: skip
    for socket in range(SOCKETS):
        hwmon = f"sys/class/hwmon/hwmon{socket}"
        files |= {f"{hwmon}/name": "coretemp\n", f"{hwmon}/temp1_input": "50000\n",
                  f"{hwmon}/temp1_label": f"Package id {socket}\n"}  # fmt: skip
        for core in range(cores // SOCKETS):
            files[f"{hwmon}/temp{core + 2}_label"] = f"Core {core}\n"
            files[f"{hwmon}/temp{core + 2}_input"] = f"{40000 + core * 100}\n"
        for zone, name in ((f"{socket}", f"package-{socket}"), (f"{socket}:0", "dram")):
            files[f"sys/class/powercap/intel-rapl:{zone}/name"] = f"{name}\n"
            files[f"sys/class/powercap/intel-rapl:{zone}/max_energy_range_uj"] = "262143328850\n"
    for domain in range(DOMAINS):
        names = ("MemTotal", "MemFree", "Active(file)", "Inactive(file)", "KReclaimable")
        files[f"sys/devices/system/node/node{domain}/meminfo"] = "".join(
            f"Node {domain} {name}: {10**8 >> place} kB\n" for place, name in enumerate(names)
        )
    for number in range(4):
        files[f"sys/class/net/eth{number}/device/vendor"] = "0x8086\n"
        files[f"sys/block/nvme{number}n1/device/model"] = "disk\n"
    files |= {"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
              "sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n"}  # fmt: skip
    for job in range(jobs):
        directory = _cgroup(job)
        files |= {f"{directory}/memory.current": "123456789\n",
                  f"{directory}/memory.peak": "223456789\n", f"{directory}/memory.max": "max\n",
                  f"{directory}/memory.events": "low 0\noom 0\noom_kill 0\n"}  # fmt: skip
    return files


def changing(hwthreads: int, jobs: int, tick: int) -> dict[str, str]:
    """Return the contents of files with counters at a tick."""
    times = f"{tick * 53} 0 {tick * 11} {tick * 37} {tick} {tick} {tick} 0 0 0"
    cpus = "".join(f"cpu{number} {times}\n" for number in range(hwthreads))
    waits = f"avg10=1.00 avg60=1.00 avg300=1.00 total={tick * 1000}\n"
    sent = f"{tick * 1000} {tick} 0 0 0 0 0 0"
    transfers = f"{tick} 0 {tick * 8} 5 {tick} 0 {tick * 16} 5 0 {tick} 5"
    port = "sys/class/infiniband/mlx5_0/ports/1/counters"
    files = {
        "proc/stat": f"cpu {times}\n{cpus}intr {tick}{' 0' * 2000}\nctxt {tick}\n"
        f"btime 1700000000\nprocesses {tick}\n",
        "proc/vmstat": f"pgfault {tick}\npgmajfault 1\npswpin 0\npswpout 0\noom_kill 0\n",
        "proc/net/dev": "".join(f"eth{number}: {sent} {sent}\n" for number in range(4)),
        "proc/diskstats": "".join(f"259 {n} nvme{n}n1 {transfers}\n" for n in range(4)),
        "proc/net/rpc/nfs": f"rpc {tick} 0 0\nproc3 22{' 0' * 22}\nproc4 70{f' {tick}' * 70}\n",
        "proc/self/mountstats": "device server:/home mounted on /home with fstype nfs4"
        f" statvers=1.1\n\tbytes:\t0 0 0 0 {tick * 100} {tick * 200} 0 0\n\n",
    }
    for name in ("rcv_data", "xmit_data", "rcv_packets", "xmit_packets"):
        files[f"{port}/port_{name}"] = f"{tick * 1000}\n"
    for zone in (f"{socket}{part}" for socket in range(SOCKETS) for part in ("", ":0")):
        files[f"sys/class/powercap/intel-rapl:{zone}/energy_uj"] = f"{tick * 10**7}\n"
    for kind in ("cpu", "memory", "io"):
        files[f"proc/pressure/{kind}"] = f"some {waits}full {waits}"
    for job in range(jobs):
        directory = _cgroup(job)
        for kind in ("cpu", "memory", "io"):
            files[f"{directory}/{kind}.pressure"] = f"some {waits}"
        files[f"{directory}/cpu.stat"] = f"usage_usec {tick * 1000}\nthrottled_usec 0\n"
        files[f"{directory}/io.stat"] = f"259:0 rbytes={tick * 100} wbytes={tick * 200} rios=1\n"
    return files


def _cgroup(job: int) -> str:
    return f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_{1000 + job}"


def write(root: Path, files: dict[str, str]) -> None:
    """Write files below a root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def counting_call() -> tuple[PerfCall, Callable[[], None]]:
    """Return a stand-in for the kernel's counters, and a function that advances them by a tick."""
    from ccagent.agents.metrics.perf.call import PerfCall

    groups: dict[int, list[PerfEvent]] = {}
    contents: dict[int, bytes] = {}
    ticks = 1

    def content(leader: int) -> bytes:
        # Distinct values: the texts of numbers must be as long as real ones.
        events = groups[leader]
        rates = [1e9 + leader * 1234.5 + e.config * 777 + ticks % 7 * 1e5 for e in events]
        head = (len(rates), ticks * 10**9, ticks * 7 * 10**8)
        return struct.pack(f"={len(rates) + 3}Q", *head, *(int(rate * ticks) for rate in rates))

    class Counting(PerfCall):
        def open(self, event: PerfEvent, cpu: int, leader: int = -1) -> int:
            descriptor = 1000 + len(groups)
            group = groups.setdefault(descriptor if leader < 0 else leader, [])
            if event.type == RAW and sum(e.type == RAW for e in group) == RAW_COUNTERS:
                raise OSError(errno.EINVAL, f"cpu {cpu} has no room")
            group.append(event)
            groups.setdefault(descriptor, [])  # numbers are used once
            return descriptor

        def enable(self, leader: int) -> None:
            pass

        def read(self, leader: int) -> bytes:
            return contents.get(leader) or content(leader)

        def close(self, descriptor: int) -> None:
            pass

    def count() -> None:
        nonlocal ticks
        ticks += 1
        contents.update((leader, content(leader)) for leader, events in groups.items() if events)

    return Counting(), count


def worker(root: str) -> None:
    """Take a tick for each line on stdin. Print its cost as JSON."""
    from ccagent.agents.metrics.agent import MetricsAgent
    from ccagent.agents.metrics.perf.reader import PerfReader
    from ccagent.agents.metrics.settings import READERS, MetricsSettings
    from ccagent.machine.node import Node
    from ccagent.records.encoding import encode

    call, count = counting_call()

    class CountedReader(PerfReader):
        def __init__(self, settings: ReaderSettings | None = None) -> None:
            super().__init__(settings, call)

    class WatchedNode(Node):
        opened: list[str] | None = None

        def open(self, path: str, *, waits: bool = False) -> int:
            descriptor = super().open(path, waits=waits)
            if self.opened is not None:
                self.opened.append(path)
            return descriptor

    READERS["perf"] = CountedReader
    node = WatchedNode(root=root, hostname="c1-1", cluster="benchmark")
    agent = MetricsAgent(MetricsSettings(include=INCLUDED), frozenset({"line"}))
    agent.prepare(node)
    files: list[str] = []
    for _ in sys.stdin:
        count()
        before = _cpu()
        messages = encode(agent.sample(node), "line", node)
        tick = _cpu() - before
        lines = [line for message in messages for line in message.body.splitlines()]
        if not files:
            node.opened = files
            list(agent.sample(node))
            node.opened = None
        before = _cpu()
        for path in files:
            node.read_single(path)
        plain = _cpu() - before
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        found = {
            "tick": tick,
            "plain": plain,
            "files": len(files),
            "points": len(lines),
            "metrics": len({line.partition(b",")[0] for line in lines}),
            "bytes": sum(len(message.body) for message in messages),
            "memory": int(status.partition("VmRSS:")[2].split()[0]) / 1024,
        }
        del lines, messages, status
        print(json.dumps(found), flush=True)


COLLECTED = ("cpu", "memory", "network", "disk", "filesystem")
SETS: dict[str, dict[str, Any]] = {
    "default": {},
    "as cc-metric-collector": {
        "preset": "cc-metric-collector",
        "readers": COLLECTED,
        "include": ("cpu_load5", "cpu_load15", "proc_run", "proc_total"),
        "exclude": ("hugepages_used", "page_faults", "major_page_faults", "oom_kills", "swap_in",
                    "swap_out", "net_drops_in", "net_drops_out", "net_errors_in",
                    "net_errors_out", "part_max_inodes_used"),
    },
}  # fmt: skip
"""Settings of the agent by the name of the set."""


def live_worker(name: str, ticks: int, pause: float) -> None:
    """Take ticks on this machine. Print their cost and the cost of an empty loop as JSON."""
    from msgspec import convert

    from ccagent.agents.metrics.agent import MetricsAgent
    from ccagent.agents.metrics.settings import MetricsSettings
    from ccagent.machine.node import Node
    from ccagent.records.encoding import encode

    node = Node(hostname="c1-1", cluster="benchmark")
    renamed = {key.replace("_", "-"): value for key, value in SETS[name].items()}
    agent = MetricsAgent(convert(renamed, MetricsSettings), frozenset({"line"}))
    agent.prepare(node)
    costs: list[float] = []
    loops: list[float] = []
    lines = 0
    for _ in range(ticks + 2):
        time.sleep(pause)
        before = _cpu()
        messages = encode(agent.sample(node), "line", node)
        costs.append(_cpu() - before)
        lines = sum(message.body.count(b"\n") for message in messages)
        before, total = _cpu(), 0
        for number in range(10_000):
            total += number
        loops.append(_cpu() - before)
    del costs[:2]  # the first tick has no rates
    figures = {"least": min(costs), "tick": statistics.median(costs), "lines": lines,
               "loop": min(loops)}  # fmt: skip
    json.dump(figures, sys.stdout)


def measure_this_machine(ticks: int) -> None:
    """Print a line for each set and pace."""
    print(
        f"{'set':24}{'pause, s':>9}{'lines':>7}{'least, ms':>11}{'median, ms':>12}{'loop, ms':>10}"
    )
    for pause in (0.05, 1.0):
        for name in SETS:
            command = [sys.executable, __file__, "--live", name, "--pause", str(pause)]
            command += ["--ticks", str(ticks)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            found = json.loads(done.stdout)
            least, tick, loop = (found[key] * 1000 for key in ("least", "tick", "loop"))
            print(f"{name:24}{pause:9}{found['lines']:7}{least:11.2f}{tick:12.2f}{loop:10.2f}")


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(hwthreads: int, jobs: int, ticks: int) -> list[dict[str, Any]]:
    """Take ticks in a new process."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write(root, machine(hwthreads, jobs))
        write(root, changing(hwthreads, jobs, 1))
        command = [sys.executable, __file__, "--worker", directory]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None  # noqa: S101
            assert process.stdout is not None  # noqa: S101
            found: list[dict[str, Any]] = []
            for tick in range(2, ticks + 2):
                write(root, changing(hwthreads, jobs, tick))
                print(flush=True, file=process.stdin)
                found.append(json.loads(process.stdout.readline()))
            process.stdin.close()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hwthreads", default="256,512")
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--ticks", type=int, default=40)
    parser.add_argument("--this-machine", action="store_true")
    parser.add_argument("--live", help=argparse.SUPPRESS)
    parser.add_argument("--pause", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    if options.live:
        live_worker(options.live, options.ticks, options.pause)
        return
    if options.this_machine:
        measure_this_machine(options.ticks)
        return
    print("hwthreads  metrics  points  bytes     files  tick, ms  plain, ms  ratio  RSS, MB")
    for hwthreads in map(int, options.hwthreads.split(",")):
        found = measure(hwthreads, options.jobs, options.ticks)
        last = found[-1]
        tick, plain = (statistics.median(each[key] for each in found) for key in ("tick", "plain"))
        print(
            f"{hwthreads:9}{last['metrics']:9}{last['points']:8}  {last['bytes']:8}"
            f"{last['files']:7}{tick * 1000:10.1f}{plain * 1000:11.1f}{tick / plain:7.1f}"
            f"{last['memory']:9.1f}"
        )


if __name__ == "__main__":
    main()
