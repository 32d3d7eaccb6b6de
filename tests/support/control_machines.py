"""Composed machines for controls: trees of /sys and /proc as these machines have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.config.files import convert
from ccagent.controls.changes import Changes
from ccagent.controls.control import Catalogue, ControlClass, Feature, find_features
from ccagent.controls.journal import Audit, Entry, Journal
from ccagent.controls.policy import Policy, RequestSender
from ccagent.controls.responder import Method, Responder
from ccagent.controls.settings import ControlsSettings, check_controls, standard_classes
from ccagent.machine.node import Node
from ccagent.records.line_protocol import Line
from tests.support.tree import StillClock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CPU = "sys/devices/system/cpu"
RAPL = "sys/class/powercap"
UNCORE = f"{CPU}/intel_uncore_frequency"
BOOT = "11111111-2222-3333-4444-555555555555"

INTEL = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon\n"
AMD = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: EPYC\n"
GRACE = "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\n"


class MachineNode(Node):
    """A recorded machine whose files the test writes and reads."""

    def __init__(self, root: Path, hostname: str = "n1.fox") -> None:
        self.still = StillClock()
        self.path = root
        root.mkdir(parents=True, exist_ok=True)
        super().__init__(root=str(root), hostname=hostname, cluster="fox", clock=self.still)
        self.put("proc/sys/kernel/random/boot_id", f"{BOOT}\n")

    def put(self, path: str, content: str | bytes | int) -> None:
        place = self.path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())

    def text(self, path: str) -> str:
        return (self.path / path).read_text().strip()

    def job(self, number: int) -> None:
        """Have Slurm make the control group of a job."""
        (self.path / f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_{number}").mkdir(
            parents=True
        )

    def end_job(self, number: int) -> None:
        (self.path / f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_{number}").rmdir()


def add_cpus(node: MachineNode, cpus: int, *, sockets: int = 1, threads: int = 1) -> None:
    """Write the topology; hwthread n and n + cores share a core."""
    cores = cpus // threads
    for cpu in range(cpus):
        core = cpu % cores
        siblings = ",".join(str(core + cores * each) for each in range(threads))
        place = f"{CPU}/cpu{cpu}/topology"
        node.put(f"{place}/core_cpus_list", siblings)
        node.put(f"{place}/core_id", core % (cores // sockets))
        node.put(f"{place}/physical_package_id", core // (cores // sockets))
        node.put(f"{place}/die_id", 0)
    for socket in range(sockets):
        low = socket * cores // sockets
        lists = [f"{low + cores * t}-{low + cores // sockets - 1 + cores * t}"
                 for t in range(threads)]  # fmt: skip
        node.put(f"sys/devices/system/node/node{socket}/cpulist", ",".join(lists))


def add_cpufreq(node: MachineNode, cpus: int, driver: str, governors: str, **more: str) -> None:
    for cpu in range(cpus):
        place = f"{CPU}/cpu{cpu}/cpufreq"
        for name, value in {
            "scaling_driver": driver,
            "scaling_governor": governors.split(maxsplit=1)[0],
            "scaling_available_governors": governors,
            "scaling_cur_freq": "2100000",
            "scaling_min_freq": "800000",
            "scaling_max_freq": "3800000",
            "cpuinfo_min_freq": "800000",
            "cpuinfo_max_freq": "3800000",
            **more,
        }.items():
            node.put(f"{place}/{name}", value)


def add_os(node: MachineNode) -> None:
    node.put("proc/sys/kernel/numa_balancing", 1)
    node.put("proc/sys/vm/swappiness", 60)
    node.put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")


def intel(root: Path) -> MachineNode:
    """Two sockets with two cores of two threads: intel_pstate, powercap, uncore, MSR."""
    node = MachineNode(root)
    node.put("proc/cpuinfo", INTEL)
    add_cpus(node, 8, sockets=2, threads=2)
    preferences = "default performance balance_performance balance_power power"
    add_cpufreq(
        node, 8, "intel_pstate", "powersave performance",
        energy_performance_available_preferences=preferences,
        energy_performance_preference="balance_performance", base_frequency="2000000",
    )  # fmt: skip
    node.put(f"{CPU}/intel_pstate/no_turbo", 0)
    for socket in range(2):
        zone = f"{RAPL}/intel-rapl:{socket}"
        _zone(node, zone, f"package-{socket}", {0: ("long_term", 270), 1: ("short_term", 324)})
        _zone(node, f"{RAPL}/intel-rapl:{socket}:0", "dram", {0: ("long_term", 40)})
        die = f"{UNCORE}/package_0{socket}_die_00"
        for name, khz in {
            "initial_min_freq_khz": 800000, "initial_max_freq_khz": 2500000,
            "min_freq_khz": 800000, "max_freq_khz": 2500000, "current_freq_khz": 1800000,
        }.items():  # fmt: skip
            node.put(f"{die}/{name}", khz)
    _zone(node, f"{RAPL}/intel-rapl:2", "psys", {0: ("long_term", 800)})
    for cpu in range(8):
        registers = bytearray(0x1A4 + 8)
        node.put(f"dev/cpu/{cpu}/msr", bytes(registers))
    add_os(node)
    return node


def _zone(node: MachineNode, path: str, name: str, limits: dict[int, tuple[str, int]]) -> None:
    node.put(f"{path}/name", name)
    node.put(f"{path}/energy_uj", 123456789)
    node.put(f"{path}/enabled", 1)
    for number, (kind, watts) in limits.items():
        constraint = f"{path}/constraint_{number}"
        node.put(f"{constraint}_name", kind)
        node.put(f"{constraint}_power_limit_uw", watts * 1_000_000)
        node.put(f"{constraint}_max_power_uw", (watts + 30) * 1_000_000)
        node.put(f"{constraint}_time_window_us", 999424)


def amd(root: Path) -> MachineNode:
    """One socket with amd_pstate and a GPU of AMD; no HSMP, no powercap, no MSR."""
    node = MachineNode(root)
    node.put("proc/cpuinfo", AMD)
    add_cpus(node, 8)
    add_cpufreq(
        node, 8, "amd-pstate-epp", "performance powersave",
        energy_performance_available_preferences="default performance power",
        energy_performance_preference="performance", amd_pstate_highest_perf="166",
        amd_pstate_max_freq="3800000", amd_pstate_lowest_nonlinear_freq="1700000",
        amd_pstate_hw_prefcore="enabled", boost="1",
    )  # fmt: skip
    card = "sys/bus/pci/devices/0000:c1:00.0"
    node.put(f"{card}/vendor", "0x1002")
    for name, watts in {
        "power1_cap": 500, "power1_cap_min": 100, "power1_cap_max": 550,
        "power1_cap_default": 500, "power1_average": 90,
    }.items():  # fmt: skip
        node.put(f"{card}/hwmon/hwmon3/{name}", watts * 1_000_000)
    node.put("sys/bus/pci/devices/0000:00:00.0/vendor", "0x1022")
    add_os(node)
    return node


def grace(root: Path) -> MachineNode:
    """Arm with cppc_cpufreq: neither powercap nor registers."""
    node = MachineNode(root)
    node.put("proc/cpuinfo", GRACE)
    add_cpus(node, 4)
    add_cpufreq(node, 4, "cppc_cpufreq", "ondemand performance schedutil")
    node.put(f"{CPU}/cpufreq/boost", 0)
    add_os(node)
    return node


def virtual(root: Path) -> MachineNode:
    """A virtual machine with nothing but its processors."""
    node = MachineNode(root)
    node.put("proc/cpuinfo", INTEL)
    add_cpus(node, 2)
    return node


class Site:
    """All that answers on a composed machine, without any wire."""

    def __init__(
        self,
        node: MachineNode,
        table: dict[str, object] | None = None,
        *,
        state: Path | None = None,
        classes: Sequence[ControlClass] | None = None,
    ) -> None:
        self.node = node
        self.state = state or node.path / "state"
        self.settings: ControlsSettings = check_table(table or {})
        self.catalogue = Catalogue(find_features(node, classes or standard_classes()))
        self.policy = Policy(self.settings)
        self.entries: list[Entry] = []
        self.journal = Journal(str(self.state))
        self.audit = Audit(str(self.state), node.still.time, self.entries.append)
        self.changes = Changes(node, self.catalogue, self.journal, self.audit)
        self.responder = Responder(
            node, self.settings, policy=self.policy, catalogue=self.catalogue,
            changes=self.changes, audit=self.audit,
            configuration=lambda: "{}",
        )  # fmt: skip

    def feature(self, name: str) -> Feature:
        return self.catalogue.find(name)

    def names(self) -> set[str]:
        return {feature.control.full_name for feature in self.catalogue}

    def ask(
        self,
        name: str,
        value: str | None = None,
        *,
        kind: str = "node",
        number: str = "0",
        sender: RequestSender | None = None,
        only: Method = "",
        **tags: str,
    ) -> tuple[str, str]:
        """GET, or PUT a value; return level and text of the answer."""
        method = "GET" if value is None else "PUT"
        found = {"hostname": "n1", "method": method, "type": kind, "type-id": number}
        named = {key.replace("_", "-"): each for key, each in tags.items()}
        line = Line(name, found | named, "control", value or "", 1)
        answer = self.responder.answer(line, sender or RequestSender("test"), only)
        assert answer.field == "log"
        assert isinstance(answer.value, str)
        return answer.tags["level"], answer.value

    def ask_thread(self, name: str, value: str | None = None, number: str = "0") -> tuple[str, str]:
        """Ask for a hwthread."""
        return self.ask(name, value, kind="hwthread", number=number)

    def restore_due(self, jobs: frozenset[int] = frozenset()) -> None:
        for change, reason in self.changes.find_due(jobs):
            self.changes.restore(change, reason)

    def restarted(self) -> Site:
        """Return the site after a crash and a new start: nothing was put back by the old one."""
        self.journal.close()
        again = Site(self.node, _table(self.settings), state=self.state)
        again.changes.recover(again.policy.allows)
        return again


def _table(settings: ControlsSettings) -> dict[str, object]:
    rules: dict[str, object] = {}
    for name, rule in settings.allow.items():
        found: dict[str, object] = {"values": rule.values, "from": rule.senders}
        if rule.min is not None:
            found |= {"min": rule.min, "max": rule.max}
        if rule.lease is not None:
            found["lease"] = str(rule.lease)
        rules[name] = found
    return {"allow": rules}


def check_table(table: object) -> ControlsSettings:
    """Return the settings of the table [controls]. Raise ConfigurationError."""
    settings = convert(table, ControlsSettings, "controls", place="test")
    check_controls(settings)
    return settings


def allow(**rules: dict[str, object]) -> dict[str, object]:
    """Return a table [controls]; `__` in a name stands for a dot."""
    return {"allow": {name.replace("__", "."): rule for name, rule in rules.items()}}
