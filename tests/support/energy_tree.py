"""A node with RAPL, jobs and CPUs, composed by the test that uses it; its time passes in steps."""

from __future__ import annotations

import shutil
from pathlib import Path

from ccagent.agents.energy import EnergySettings
from ccagent.agents.energy.meter import EnergyMeter
from ccagent.config.files import convert
from ccagent.machine.clock import Clock
from ccagent.machine.node import Node

INTEL_RANGE = 262_143_328_850
AMD_RANGE = 65_532_610_987
DRAM_RANGE = 65_712_999_613
GIB = 1 << 30


class EnergyClock(Clock):
    """A clock of which the test moves each hand."""

    def __init__(self) -> None:
        self.wall = 1_795_000_000.0
        self.steady = 5000.0
        self.booted = 5000.0

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def uptime(self) -> float:
        return self.booted

    def sleep(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds
        self.booted += seconds


class EnergyNode(Node):
    """A node below a temporary directory: two sockets of four cpus, 64 GiB."""

    def __init__(self, root: Path, *, sockets: int = 2, cpus: int = 4, version: int = 2) -> None:
        self.still = EnergyClock()
        self.path = root
        self.version = version
        self.sockets = {cpu: cpu // cpus for cpu in range(sockets * cpus)}
        self.ticks = dict.fromkeys(self.sockets, 0)
        self.energies: dict[str, int] = {}
        self.ranges: dict[str, int] = {}
        self.times: dict[int, int] = {}
        super().__init__(root=str(root), hostname="n1", cluster="fox", clock=self.still)
        self.clock_ticks = 100
        self.write("proc/meminfo", f"MemTotal: {64 * GIB // 1024} kB\n")
        self.write("proc/sys/kernel/random/boot_id", "first\n")
        self.write("sys/devices/system/cpu/online", f"0-{sockets * cpus - 1}\n")
        for cpu, socket in self.sockets.items():
            directory = f"sys/devices/system/cpu/cpu{cpu}/topology"
            self.write(f"{directory}/physical_package_id", f"{socket}\n")
        self.show_cpus()

    def write(self, name: str, content: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def show_cpus(self) -> None:
        """Write /proc/stat: each cpu worked for its ticks of 10 ms."""
        rows = [f"cpu{cpu} {ticks} 0 0 999 50 0 0 3 0 0\n" for cpu, ticks in self.ticks.items()]
        self.write("proc/stat", "cpu 1 1 1 1 1 1 1 1 1 1\n" + "".join(rows) + "btime 1790000000\n")

    def zone(self, zone: str, name: str, largest: int, energy: int = 1_000_000) -> None:
        """Make a zone of RAPL, `0`, `0:0` and so on."""
        self.write(f"sys/class/powercap/intel-rapl:{zone}/name", f"{name}\n")
        self.write(f"sys/class/powercap/intel-rapl:{zone}/max_energy_range_uj", f"{largest}\n")
        self.energies[zone], self.ranges[zone] = energy, largest
        self.spend(zone, 0)

    def zones(self, *, dram: bool = True) -> None:
        """Make packages, and their memory."""
        for socket in sorted({*self.sockets.values()}):
            self.zone(str(socket), f"package-{socket}", INTEL_RANGE)
            if dram:
                self.zone(f"{socket}:0", "dram", DRAM_RANGE)

    def spend(self, zone: str, joules: float) -> None:
        """Let a zone use energy; its counter wraps."""
        self.energies[zone] += round(joules * 1e6)
        shown = self.energies[zone] % (self.ranges[zone] + 1)
        self.write(f"sys/class/powercap/intel-rapl:{zone}/energy_uj", f"{shown}\n")

    def job_path(self, job: int, controller: str = "cpuacct") -> str:
        """Return the directory of a job's control group."""
        if self.version == 2:
            return f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_{job}"
        return f"sys/fs/cgroup/{controller}/slurm/uid_1001/job_{job}"

    def job(self, job: int, cpus: str, *, memory: int = 8 * GIB) -> None:
        """Make the control group of a job."""
        self.times[job] = 0
        if self.version == 2:
            self.write(f"{self.job_path(job)}/cpuset.cpus.effective", f"{cpus}\n")
            self.write(f"{self.job_path(job)}/memory.max", f"{memory}\n")
        else:
            self.write(f"{self.job_path(job, 'cpuset')}/cpuset.cpus", f"{cpus}\n")
            self.write(f"{self.job_path(job, 'memory')}/memory.limit_in_bytes", f"{memory}\n")
        self.work(job, {})

    def work(self, job: int, ticks: dict[int, int]) -> None:
        """Let a job work for ticks of 10 ms on cpus."""
        self.times[job] += sum(ticks.values()) * 10_000
        if self.version == 2:
            text = f"usage_usec {self.times[job]}\nuser_usec 1\nsystem_usec 1\n"
            self.write(f"{self.job_path(job)}/cpu.stat", text)
        else:
            self.write(f"{self.job_path(job)}/cpuacct.usage", f"{self.times[job] * 1000}\n")
        self.other_work(ticks)

    def other_work(self, ticks: dict[int, int]) -> None:
        """Let cpus work for something that is in no job."""
        for cpu, more in ticks.items():
            self.ticks[cpu] += more
        self.show_cpus()

    def end(self, job: int) -> None:
        """Remove a job."""
        controllers = ("cpuacct", "cpuset", "memory") if self.version == 1 else ("",)
        for controller in controllers:
            shutil.rmtree(self.path / self.job_path(job, controller), ignore_errors=True)


def make_settings(**values: object) -> EnergySettings:
    """Return settings; no cards, unless they are asked for."""
    table: dict[str, object] = {"gpu-vendors": [], "rapl": "powercap", **values}
    return convert(table, EnergySettings, "agents.energy", place="test")


def make_meter(node: EnergyNode, **values: object) -> EnergyMeter:
    """Return a meter that has taken its first reading."""
    meter = EnergyMeter(make_settings(**values))
    meter.open(node)
    return meter
