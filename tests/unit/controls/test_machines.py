"""What composed machines offer: list, get, set, verify, restore."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.controls.control import read_topology
from tests.support.control_machines import (
    CPU,
    RAPL,
    UNCORE,
    Site,
    allow,
    amd,
    grace,
    intel,
    virtual,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.control_machines import MachineNode

GOVERNOR = "cpu_freq.governor"
OS = {"os.numa_balancing", "os.swappiness", "os.transparent_hugepage"}


def test_an_intel_machine_lists_cpufreq_powercap_uncore_and_prefetchers(tmp_path: Path) -> None:
    names = Site(intel(tmp_path)).names()
    assert names >= OS | {
        GOVERNOR, "cpu_freq.min_cpu_freq", "cpu_freq.max_cpu_freq", "cpu_freq.boost",
        "cpu_freq.epp", "cpu_freq.turbo", "rapl.pkg_energy", "rapl.pkg_limit_1",
        "rapl.pkg_limit_1_time", "rapl.pkg_limit_1_enable", "rapl.pkg_limit_2", "rapl.pkg_tdp",
        "rapl.dram_limit", "rapl.psys_limit_1", "uncore_freq.cur_uncore_freq",
        "uncore_freq.min_uncore_freq", "uncore_freq.max_uncore_freq", "prefetch.l2_hwpf",
        "prefetch.l1_dcu_ip",
    }  # fmt: skip
    assert not {name for name in names if name.startswith(("hsmp", "nvml", "amd_gpu"))}


def test_an_amd_machine_lists_amd_pstate_and_its_card(tmp_path: Path) -> None:
    names = Site(amd(tmp_path)).names()
    assert names >= OS | {
        GOVERNOR, "cpu_freq.epp", "cpu_freq.boost", "cpu_freq.highest_perf",
        "amd_gpu.power_limit_cur",
    }  # fmt: skip
    assert not {n for n in names if n.startswith(("rapl", "hsmp", "prefetch", "uncore"))}


def test_grace_lists_cpufreq_alone(tmp_path: Path) -> None:
    names = Site(grace(tmp_path)).names()
    assert {name.partition(".")[0] for name in names} == {"cpu_freq", "os"}
    assert "cpu_freq.epp" not in names


def test_a_virtual_machine_has_nothing(tmp_path: Path) -> None:
    site = Site(virtual(tmp_path))
    assert site.names() == set()
    assert site.ask("controls") == ("INFO", '{"controls":[]}')
    assert site.ask(GOVERNOR, kind="hwthread")[0] == "ERROR"


def test_controls_are_listed_as_the_reference_lists_them(tmp_path: Path) -> None:
    level, text = Site(intel(tmp_path)).ask("controls")
    listed = {f"{c['category']}.{c['name']}": c for c in json.loads(text)["controls"]}
    assert level == "INFO"
    assert set(listed[GOVERNOR]) == {"category", "name", "device_type", "description", "methods"}
    assert listed[GOVERNOR]["methods"] == "ALL"
    assert listed["rapl.pkg_energy"]["methods"] == "GET"
    assert listed["rapl.pkg_limit_1"]["device_type"] == "socket"


@pytest.mark.parametrize(
    ("name", "kind", "number", "text"),
    [
        (GOVERNOR, "hwthread", "3", "powersave"),
        ("governor", "hwthread", "3", "powersave"),
        ("cpu_freq.max_cpu_freq", "hwthread", "0", "3800000"),
        ("cpu_freq.boost", "hwthread", "0", "1"),
        ("rapl.pkg_limit_1", "socket", "1", "270.000000"),
        ("rapl.pkg_limit_2", "socket", "0", "324.000000"),
        ("rapl.pkg_tdp", "socket", "0", "300.000000"),
        ("rapl.pkg_energy", "socket", "0", "123.456789"),
        ("rapl.pkg_limit_1_time", "socket", "0", "0.999424"),
        ("rapl.pkg_limit_1_enable", "socket", "0", "1"),
        ("uncore_freq.max_uncore_freq", "socket", "1", "2500"),
        ("prefetch.l2_hwpf", "hwthread", "0", "1"),
        ("os.transparent_hugepage", "node", "0", "madvise"),
        ("os.swappiness", "node", "7", "60"),
    ],
)
def test_values_are_likwids_texts(
    tmp_path: Path, name: str, kind: str, number: str, text: str
) -> None:
    assert Site(intel(tmp_path)).ask(name, kind=kind, number=number) == ("INFO", text)


@pytest.mark.parametrize(
    ("name", "kind", "number", "reason"),
    [
        ("cpu_freq.nothing", "hwthread", "0", "no such control"),
        ("nothing", "node", "0", "no such control"),
        (GOVERNOR, "socket", "0", "is of type hwthread"),
        (GOVERNOR, "hwthread", "8", "no device hwthread/'8'"),
        (GOVERNOR, "hwthread", "../../0", "no device"),
        (GOVERNOR, "accelerator", "0", "is of type hwthread"),
        ("../../etc/passwd", "node", "0", "no such control"),
    ],
)
def test_what_is_not_there_is_an_error_with_the_reason(
    tmp_path: Path, name: str, kind: str, number: str, reason: str
) -> None:
    level, text = Site(intel(tmp_path)).ask(name, kind=kind, number=number)
    assert level == "ERROR"
    assert reason in text


SETTINGS: list[Any] = [
    (intel, GOVERNOR, "hwthread", "3", "performance", f"{CPU}/cpu3/cpufreq/scaling_governor",
     "performance", {"values": ["performance"]}),
    (intel, "cpu_freq.max_cpu_freq", "hwthread", "0", "2000000",
     f"{CPU}/cpu0/cpufreq/scaling_max_freq", "2000000", {"min": 1e6, "max": 3e6}),
    (intel, "cpu_freq.boost", "hwthread", "0", "0", f"{CPU}/intel_pstate/no_turbo", "1", {}),
    (intel, "rapl.pkg_limit_1", "socket", "1", "150.5",
     f"{RAPL}/intel-rapl:1/constraint_0_power_limit_uw", "150500000", {"min": 80, "max": 350}),
    (intel, "uncore_freq.max_uncore_freq", "socket", "0", "1800",
     f"{UNCORE}/package_00_die_00/max_freq_khz", "1800000", {"min": 1000, "max": 2500}),
    (intel, "os.swappiness", "node", "0", "10", "proc/sys/vm/swappiness", "10",
     {"values": ["10"]}),
    (amd, "cpu_freq.boost", "hwthread", "2", "false", f"{CPU}/cpu2/cpufreq/boost", "0", {}),
    (amd, "cpu_freq.epp", "hwthread", "1", "power",
     f"{CPU}/cpu1/cpufreq/energy_performance_preference", "power", {"values": ["power"]}),
    (amd, "amd_gpu.power_limit_cur", "amd_gpu", "0:c1:0.0", "300",
     "sys/bus/pci/devices/0000:c1:00.0/hwmon/hwmon3/power1_cap", "300000000",
     {"min": 100, "max": 500}),
    (grace, GOVERNOR, "hwthread", "0", "schedutil", f"{CPU}/cpu0/cpufreq/scaling_governor",
     "schedutil", {"values": ["schedutil", "performance"]}),
    (grace, "cpu_freq.boost", "hwthread", "3", "1", f"{CPU}/cpufreq/boost", "1", {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "name", "kind", "number", "value", "file", "written", "rule"), SETTINGS
)
def test_set_verify_and_restore(
    tmp_path: Path,
    make: Callable[[Path], MachineNode],
    name: str,
    kind: str,
    number: str,
    value: str,
    file: str,
    written: str,
    rule: dict[str, object],
) -> None:
    node = make(tmp_path)
    site = Site(node, {"allow": {name: rule}})
    before = node.text(file)
    level, text = site.ask(name, value, kind=kind, number=number)
    assert (level, text[-8:]) == ("INFO", "SUCCESS!")
    assert node.text(file) == written
    assert site.ask("restore", "") == ("INFO", "Restored 1 values: SUCCESS!")
    assert node.text(file) == before
    assert [entry.action for entry in site.entries] == ["set", "restored"]
    assert site.changes.all() == []


def test_a_prefetcher_is_one_bit_of_a_register(tmp_path: Path) -> None:
    node = intel(tmp_path)
    register = bytearray(0x1A4 + 8)
    register[0x1A4] = 0b1000
    node.put("dev/cpu/2/msr", bytes(register))
    site = Site(node, allow(prefetch__l2_hwpf={}))
    assert site.ask("prefetch.l1_dcu_ip", kind="hwthread", number="2") == ("INFO", "0")
    assert site.ask("prefetch.l2_hwpf", "0", kind="hwthread", number="2")[0] == "INFO"
    assert (node.path / "dev/cpu/2/msr").read_bytes()[0x1A4] == 0b1001


def test_policies_of_cpufreq_that_hwthreads_share_are_one_change(tmp_path: Path) -> None:
    """Else the restore of the second would put back what the first had set."""
    node = grace(tmp_path)
    site = Site(node, allow(cpu_freq__boost={}))
    assert site.ask("cpu_freq.boost", "1", kind="hwthread", number="0")[0] == "INFO"
    assert site.ask("cpu_freq.boost", "1", kind="hwthread", number="1")[0] == "INFO"
    assert len(site.changes.all()) == 1
    assert site.ask("restore", "")[0] == "INFO"
    assert node.text(f"{CPU}/cpufreq/boost") == "0"


def test_topology_is_read_from_sys(tmp_path: Path) -> None:
    node = intel(tmp_path)
    node.put("sys/devices/system/node/node8/cpulist", "")  # the memory of a GPU
    topology = read_topology(node)
    info = topology.cpu_info
    assert (info.num_hwthreads, info.smt_width, info.num_sockets) == (8, 2, 2)
    assert (info.num_dies, info.num_cores, info.num_numa_domains) == (2, 4, 2)
    last = topology.hwthreads[-1]
    assert (last.cpu_id, last.smt_id, last.core_cpu_list) == (7, 1, [3, 7])
    assert (last.core_id, last.socket_id, last.numa_id) == (1, 1, 1)


def test_hwthreads_that_are_offline_are_no_devices(tmp_path: Path) -> None:
    node = grace(tmp_path)
    node.put(f"{CPU}/cpu3/online", 0)
    assert list(Site(node).feature(GOVERNOR).devices) == ["0", "1", "2"]
