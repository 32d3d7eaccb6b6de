"""energy, hwmon: ACPI meters are integrated, Grace's rails told apart, amd_energy counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.agents.energy.accounts import NODE_METER, EnergyDomain
from ccagent.agents.energy.checks import find_node_meter
from ccagent.agents.energy.sources.meters import HWMON, HwmonEnergySource, parse_microwatts
from ccagent.errors import NotHereError, UnparsableError
from tests.support.energy_tree import EnergyNode


def meter(node: EnergyNode, number: int, watts: float, label: str = "") -> None:
    """Make an ACPI power meter; its files are those of the device."""
    directory = f"{HWMON}/hwmon{number}"
    node.write(f"{directory}/name", "power_meter\n")
    node.write(f"{directory}/device/power1_average", f"{round(watts * 1e6)}\n")
    if label:
        node.write(f"{directory}/device/power1_oem_info", f"{label}\n")


def joules(source: HwmonEnergySource, node: EnergyNode) -> dict[EnergyDomain, float | str]:
    found = source.read(node)
    return {domain: each.flaw or each.energy / 1e6 for domain, each in found.items()}


def test_power_is_integrated_every_second(tmp_path: Path) -> None:
    node, source = EnergyNode(tmp_path), HwmonEnergySource()
    meter(node, 0, 300)
    assert joules(source, node) == {}
    assert source.poll_interval == 1.0
    for watts in (300, 500, 500, 300):
        meter(node, 0, watts)
        node.still.sleep(1)
        source.poll(node)
    # 300, then trapezoids of 400, 500 and 400
    assert joules(source, node) == {NODE_METER: 1600.0}
    assert source.read(node) == {}


def test_older_drivers_have_the_name_beside_the_power(tmp_path: Path) -> None:
    node, source = EnergyNode(tmp_path), HwmonEnergySource()
    node.write(f"{HWMON}/hwmon3/device/name", "power_meter\n")
    node.write(f"{HWMON}/hwmon3/device/power1_average", "300000000\n")
    source.read(node)
    node.still.sleep(10)
    assert joules(source, node) == {NODE_METER: 3000.0}
    assert find_node_meter(node).state == "good"


def test_a_gap_is_not_guessed(tmp_path: Path) -> None:
    node, source = EnergyNode(tmp_path), HwmonEnergySource()
    meter(node, 0, 300)
    source.read(node)
    node.still.sleep(60)
    assert joules(source, node) == {NODE_METER: "60 s between two readings of power"}


def test_graces_rails(tmp_path: Path) -> None:
    node, source = EnergyNode(tmp_path), HwmonEnergySource()
    for number, (watts, label) in enumerate(
        ((600, "Module"), (250, "Grace"), (180, "CPU"), (30, "SysIO"))
    ):
        meter(node, number, watts, f"{label} Power Socket 1")
    source.read(node)
    node.still.sleep(10)
    assert joules(source, node) == {
        EnergyDomain("package", 1): 1800.0,
        EnergyDomain("board", 1): 300.0,
        EnergyDomain("dram", 1): 400.0,
    }


def test_memory_of_grace_is_never_negative(tmp_path: Path) -> None:
    node, source = EnergyNode(tmp_path), HwmonEnergySource()
    rails = {"Grace": 200.0, "CPU": 190.0, "SysIO": 30.0}
    for number, (label, watts) in enumerate(rails.items()):
        meter(node, number, watts, f"{label} Power Socket 0")
    source.read(node)
    node.still.sleep(10)
    assert joules(source, node)[EnergyDomain("dram", 0)] == 0.0
    meter(node, 0, 290, "Grace Power Socket 0")
    node.still.sleep(10)
    assert joules(source, node)[EnergyDomain("dram", 0)] == 50.0  # 250 less what was owed


def test_amd_energy_is_counted(tmp_path: Path) -> None:
    node, source = EnergyNode(tmp_path), HwmonEnergySource()
    node.write(f"{HWMON}/hwmon0/name", "amd_energy\n")
    for number, label in ((1, "Ecore000"), (2, "Esocket0"), (3, "Esocket1")):
        node.write(f"{HWMON}/hwmon0/energy{number}_label", f"{label}\n")
        node.write(f"{HWMON}/hwmon0/energy{number}_input", "5000000\n")
    source.read(node)
    node.write(f"{HWMON}/hwmon0/energy3_input", "905000000\n")
    node.still.sleep(10)
    assert joules(source, node) == {
        EnergyDomain("package", 0): 0.0, EnergyDomain("package", 1): 900.0,
    }  # fmt: skip


def test_a_battery_is_no_meter_of_the_node(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path)
    meter(node, 0, 300)
    node.write(f"{HWMON}/hwmon0/device/power1_is_battery", "1\n")
    with pytest.raises(NotHereError):
        HwmonEnergySource().read(node)
    node.write(f"{HWMON}/hwmon0/device/power1_is_battery", "0\n")
    assert HwmonEnergySource().read(node) == {}


def test_other_chips_are_no_meters(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path)
    node.write(f"{HWMON}/hwmon0/name", "amdgpu\n")
    node.write(f"{HWMON}/hwmon0/power1_average", "30000000\n")
    with pytest.raises(NotHereError):
        HwmonEnergySource().read(node)


@pytest.mark.parametrize("text", [b"", b"0", b"-5", b"1e6", b"100000000001", b"9" * 30])
def test_what_is_no_power(text: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_microwatts(text)
