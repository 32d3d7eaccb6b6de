"""CPU time and memory of a scrape: ccagent and node_exporter on the same recorded machine.

    python benchmarks/exporter.py [SCRAPES] [--all-sets] [--without-cpufreq | --this-machine]

Both exporters read a tree with 48 and with 256 hwthreads (about 1,000 and 5,000 series). They are
scraped in turn with gzip, as Prometheus does. NODE_EXPORTER in the environment is the path of
another node_exporter than Debian's prometheus-node-exporter. With --all-sets ccagent also has all
other sets of names that a tree can feed, for 20 and for 400 jobs on 48 hwthreads. With
--without-cpufreq the tree has no frequencies, as in most virtual machines. With --this-machine both
read this machine with their defaults: node_exporter then also has the metrics of its own process,
as ccagent has.
"""

from __future__ import annotations

import gzip
import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccagent.exporter.settings import NameSet

sys.path.insert(0, str(Path(__file__).parent.parent))

_THIS_MACHINE = Path("/")
HWTHREADS = (48, 256)
JOBS = (20, 400)
_ALL_SETS: tuple[NameSet, ...] = (
    "node_exporter", "ccagent", "cgroup_exporter", "ceems", "slurm-job-exporter", "omnistat",
)  # fmt: skip
_COPIED = (
    "meminfo", "vmstat", "loadavg", "diskstats", "net/dev", "net/netstat", "net/snmp", "net/snmp6",
    "net/sockstat", "net/sockstat6", "net/arp", "net/udp", "pressure/cpu", "pressure/io",
    "pressure/memory", "sys/fs/file-nr", "sys/kernel/random/entropy_avail",
    "sys/kernel/random/poolsize", "self/mountinfo", "1/mountinfo", "self/mounts", "1/mounts",
)  # fmt: skip
_COLLECTORS = (
    "arp", "cpu", "cpufreq", "diskstats", "edac", "entropy", "filefd", "hwmon", "loadavg",
    "meminfo", "netclass", "netstat", "pressure", "schedstat", "selinux", "sockstat",
    "softnet", "stat", "thermal_zone", "time", "udp_queues", "uname", "vmstat",
)  # fmt: skip
"""Collectors that read only the tree, or nothing. netdev would ask the kernel."""
_FREQUENCIES = (
    *(f"scaling_{name}" for name in ("cur_freq", "min_freq", "max_freq", "governor", "driver",
                                     "available_governors", "setspeed")),
    *(f"cpuinfo_{name}" for name in ("min_freq", "max_freq", "transition_latency")),
    "related_cpus",
)  # fmt: skip
_INTERFACE = (
    "addr_assign_type", "address", "broadcast", "carrier", "carrier_changes", "dev_id", "dormant",
    "duplex", "flags", "ifalias", "ifindex", "iflink", "link_mode", "mtu", "name_assign_type",
    "netdev_group", "operstate", "speed", "tx_queue_len", "type",
)  # fmt: skip


def make_tree(root: Path, hwthreads: int, *, has_frequencies: bool) -> None:
    """Write a machine with this number of hwthreads."""
    for name in _COPIED:
        source, target = Path("/proc", name), root / "proc" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.write_bytes(source.read_bytes())
        except OSError:
            continue
    cpus = range(hwthreads)
    events = (
        "intr 4711 1\nctxt 99\nbtime 1700000000\nprocesses 9\nprocs_running 1\nprocs_blocked 0\n"
    )
    times = "".join(f"cpu{n} {n + 5} 2 {n * 7} 40000 5 0 7 8 0 0\n" for n in cpus)
    (root / "proc/stat").write_text(f"cpu  1 2 3 4 5 6 7 8 0 0\n{times}{events}")
    softnet = "".join(f"{n:08x} " + "00000000 " * 11 + f"{n:08x}\n" for n in cpus)
    (root / "proc/net/softnet_stat").write_text(softnet)
    lines = "".join(f"cpu{n} 0 0 0 0 0 0 {n}000000 {n}0000 {n}\n" for n in cpus)
    (root / "proc/schedstat").write_text(f"version 15\ntimestamp 1\n{lines}")
    for cpu in cpus:
        place = root / f"sys/devices/system/cpu/cpu{cpu}"
        place.mkdir(parents=True)
        if not has_frequencies:
            continue
        (place / "cpufreq").mkdir()
        # node_exporter exposes no frequency if one of the other files is missing.
        for name in _FREQUENCIES:
            (place / "cpufreq" / name).write_text("2400000\n")
    for interface in Path("/sys/class/net").iterdir():
        place = root / "sys/class/net" / interface.name
        place.mkdir(parents=True)
        for name in _INTERFACE:
            try:
                (place / name).write_bytes((interface / name).read_bytes())
            except OSError:
                continue
    for name in ("sys/class/thermal", "sys/class/hwmon", "sys/devices/system/edac/mc"):
        (root / name).mkdir(parents=True)


def add_jobs(root: Path, count: int) -> None:
    """Write the control groups of jobs, each with four processes."""
    from tests.unit.agents.metrics.readers.test_cgroup_jobs import V2

    for job in range(1000, 1000 + count):
        top = root / f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_{job}"
        task = top / "step_0/user/task_0"
        task.mkdir(parents=True)
        for name, text in (V2 | {"cpuset.cpus": f"{job % 48}\n"}).items():
            (top / name).write_text(text)
        pids = [job * 10 + number for number in range(4)]
        (task / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        for pid in pids:
            place = root / f"proc/{pid}"
            place.mkdir()
            (place / "stat").write_text(f"{pid} (app) R 1 {pid} {pid} {' '.join(['1'] * 46)}\n")
            (place / "environ").write_text("SLURM_JOB_ACCOUNT=chem\0SLURM_JOB_NAME=a\0")


def serve(root: str, port: int, jobs: int) -> None:
    """Serve the tree with ccagent's exporter until killed. jobs: 0 for node_exporter's names."""
    from ccagent.exporter.service import ExporterService
    from ccagent.exporter.settings import ExporterSettings, list_collectors
    from ccagent.machine.node import Node

    names = _ALL_SETS if jobs else _ALL_SETS[:1]
    others = {name for each in names[1:] for name in list_collectors(each)}
    unread = {*list_collectors(names[0])} - {*_COLLECTORS} - others if root != "/" else ()
    settings = ExporterSettings(
        listen=(f"127.0.0.1:{port}",),
        names=names,
        exclude=(*sorted(unread),),
        max_jobs=jobs if root != "/" else 0,
    )
    ExporterService(settings).start(Node(root=root, hostname="node", cluster="test"))
    time.sleep(3600)


def scrape(port: int) -> tuple[int, float, int]:
    """Return the number of series, the seconds until the response, and its size in B."""
    begin = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
    packed = connection.getresponse().read()
    seconds = time.perf_counter() - begin
    connection.close()
    body = gzip.decompress(packed)
    return sum(not line.startswith(b"#") for line in body.splitlines()), seconds, len(packed)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far, including ended threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def compare(root: Path, scrapes: int, jobs: int) -> None:
    """Scrape both exporters in turn, and print a row for each."""
    ports = (free_port(), free_port())
    program = os.environ.get("NODE_EXPORTER", "prometheus-node-exporter")
    node_exporter = [program, f"--web.listen-address=127.0.0.1:{ports[0]}"]
    if root != _THIS_MACHINE:
        collectors = (f"--collector.{name}" for name in _COLLECTORS)
        paths = (f"--path.procfs={root / 'proc'}", f"--path.sysfs={root / 'sys'}")
        node_exporter += ["--web.disable-exporter-metrics", "--collector.disable-defaults"]
        node_exporter += [*collectors, *paths]
    ccagent = [sys.executable, __file__, "serve", str(root), str(ports[1]), str(jobs)]
    processes = [
        subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in (node_exporter, ccagent)
    ]
    try:
        for port in ports:
            wait_for(port)
        for _ in range(5):
            for port in ports:
                scrape(port)
        before = [cpu_seconds(process.pid) for process in processes]
        times: list[list[float]] = [[], []]
        series, sizes = [0, 0], [0, 0]
        for _ in range(scrapes):
            for which, port in enumerate(ports):
                series[which], seconds, sizes[which] = scrape(port)
                times[which].append(seconds)
            time.sleep(0.21)  # longer than min-interval: each scrape causes a reading
        used = [
            (cpu_seconds(process.pid) - start) / scrapes
            for process, start in zip(processes, before, strict=True)
        ]
        for which, name in enumerate(("node_exporter", "ccagent")):
            latency = sorted(times[which])[scrapes // 2]
            print(
                f"{name:14} {series[which]:6} {used[which] * 1000:9.2f} "
                f"{used[which] / used[0]:7.2f} {latency * 1000:9.2f} "
                f"{resident(processes[which].pid):8.1f} {sizes[which] / 1024:7.1f}"
            )
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_for(port: int) -> None:
    """Wait until a process listens on the port."""
    for _ in range(1200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nobody listens at port {port}")


def main() -> None:
    """Compare the exporters on each machine."""
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    scrapes = int(words[0]) if words else 50
    is_all = "--all-sets" in sys.argv
    machines = [(hwthreads, 0) for hwthreads in HWTHREADS]
    if is_all:
        machines = [(HWTHREADS[0], jobs) for jobs in JOBS]
    print(
        f"{'':14} {'series':>6} {'CPU ms':>9} {'ratio':>7} {'median ms':>9} {'RSS MiB':>8}"
        f" {'gzip KiB':>8}"
    )
    if "--this-machine" in sys.argv:
        compare(_THIS_MACHINE, scrapes, int(is_all))
        return
    for hwthreads, jobs in machines:
        root = Path(tempfile.mkdtemp(prefix="ccagent-exporter-"))
        try:
            make_tree(root, hwthreads, has_frequencies="--without-cpufreq" not in sys.argv)
            add_jobs(root, jobs)
            compare(root, scrapes, jobs)
        finally:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
