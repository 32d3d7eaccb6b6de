"""Sensors of all kinds and their limits, out of /sys/class/hwmon."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.hwmon import HwmonReader, find_sensors
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.hwmon import parse_label, parse_sensor
from ccagent.records.points import encode_tags
from tests.support.tree import TreeNode

# Two chips of an AM4 board in part: lm-sensors/lm-sensors, issue 144. The other files of the
# graphics card could not be read ("Invalid argument"); the name of the second chip is not recorded.
RECORDED = {
    "hwmon0": {
        "name": "amdgpu", "in0_label": "vddgfx", "in1_label": "vddnb", "pwm1": "0",
        "temp1_crit": "80000", "temp1_crit_hyst": "0", "temp1_input": "28000",
    },
    "hwmon1": {
        "name": "superio", "beep_enable": "0", "fan1_alarm": "0", "fan1_beep": "0",
        "fan1_input": "0", "fan1_min": "0", "fan1_pulses": "2", "fan1_target": "0",
        "fan2_alarm": "0", "fan2_input": "1660", "fan2_min": "0",
    },
}  # fmt: skip

# Written by hand, in the units of Documentation/hwmon/sysfs-interface.rst.
ALL_KINDS = {
    "name": "server",
    "temp1_input": "45500", "temp1_min": "-5000", "temp1_max": "80000", "temp1_lcrit": "-10000",
    "temp1_crit": "95000", "temp1_emergency": "105000", "temp1_label": "Inlet, left",
    "fan1_input": "8400", "fan1_min": "600", "fan1_max": "18000",
    "in0_input": "11988", "in0_min": "10800", "in0_max": "13200", "in0_lcrit": "10000",
    "in0_crit": "14000",
    "curr1_input": "12250", "curr1_min": "0", "curr1_max": "60000", "curr1_lcrit": "-1",
    "curr1_crit": "70000",
    "power1_input": "412000000", "power1_average": "400000000", "power1_max": "800000000",
    "power1_crit": "900000000", "power1_cap": "750000000",
    "power2_average": "398500000",
}  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path)


def write(node: TreeNode, chip: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        node.write(f"../sys/class/hwmon/{chip}/{name}", f"{text}\n")


def values(reader: HwmonReader, node: TreeNode) -> dict[tuple[str, str], float]:
    found = list(reader.read(node))
    assert {each.scope.stype for each in found} <= {"sensor"}
    result = {(each.metric, each.scope.stype_id): each.value for each in found}
    assert len(result) == len(found)
    return result


def test_a_recorded_machine(node: TreeNode) -> None:
    for chip, files in RECORDED.items():
        write(node, chip, files)
    reader = HwmonReader()
    assert values(reader, node) == {
        ("hwmon_temp", "amdgpu-0/temp1"): 28,
        ("hwmon_temp_crit", "amdgpu-0/temp1"): 80,
        ("hwmon_fan", "superio-0/fan1"): 0,
        ("hwmon_fan_min", "superio-0/fan1"): 0,
        ("hwmon_fan", "superio-0/fan2"): 1660,
        ("hwmon_fan_min", "superio-0/fan2"): 0,
    }
    assert reader.errors == []


def test_values_and_limits_of_each_kind_have_their_units(node: TreeNode) -> None:
    write(node, "hwmon0", ALL_KINDS)
    temp, fan, volts, amperes, power, average = (
        "server-0/temp1/Inlet, left", "server-0/fan1", "server-0/in0", "server-0/curr1",
        "server-0/power1", "server-0/power2",
    )  # fmt: skip
    reader = HwmonReader()
    found = values(reader, node)
    assert found == {
        ("hwmon_temp", temp): 45.5, ("hwmon_temp_min", temp): -5, ("hwmon_temp_max", temp): 80,
        ("hwmon_temp_lcrit", temp): -10, ("hwmon_temp_crit", temp): 95,
        ("hwmon_temp_emergency", temp): 105,
        ("hwmon_fan", fan): 8400, ("hwmon_fan_min", fan): 600, ("hwmon_fan_max", fan): 18000,
        ("hwmon_voltage", volts): 11.988, ("hwmon_voltage_min", volts): 10.8,
        ("hwmon_voltage_max", volts): 13.2, ("hwmon_voltage_lcrit", volts): 10,
        ("hwmon_voltage_crit", volts): 14,
        ("hwmon_current", amperes): 12.25, ("hwmon_current_min", amperes): 0,
        ("hwmon_current_max", amperes): 60, ("hwmon_current_lcrit", amperes): -0.001,
        ("hwmon_current_crit", amperes): 70,
        ("hwmon_power", power): 412, ("hwmon_power_max", power): 800,
        ("hwmon_power_crit", power): 900, ("hwmon_power_cap", power): 750,
        ("hwmon_power", average): 398.5,
    }  # fmt: skip
    assert {metric for metric, _ in found} == set(reader.metrics)
    units = {name: metric.unit for name, metric in reader.metrics.items()}
    assert {name: unit for name, unit in units.items() if name.count("_") == 1} == {
        "hwmon_temp": "degC", "hwmon_fan": "rpm", "hwmon_voltage": "V", "hwmon_current": "A",
        "hwmon_power": "W",
    }  # fmt: skip


def test_chips_with_one_name_are_counted_in_the_order_of_their_numbers(node: TreeNode) -> None:
    for number, degrees in ((10, "41000"), (2, "31000")):
        write(node, f"hwmon{number}", {"name": "nvme", "temp1_input": degrees})
    assert values(HwmonReader(), node) == {
        ("hwmon_temp", "nvme-0/temp1"): 31, ("hwmon_temp", "nvme-1/temp1"): 41,
    }  # fmt: skip


def test_only_what_is_wanted_is_read(node: TreeNode) -> None:
    write(node, "hwmon0", ALL_KINDS)
    (node.path / "sys/class/hwmon/hwmon0/fan1_input").write_text("broken\n")
    reader = HwmonReader()
    reader.wanted = frozenset({"cpu_user", "hwmon_temp_crit"})
    assert {metric for metric, _ in values(reader, node)} == {"hwmon_temp_crit"}
    assert reader.errors == []
    reader.wanted = frozenset({"cpu_user"})
    assert values(reader, node) == {}
    assert not any(metric.is_default for metric in reader.metrics.values())


def test_a_sensor_with_a_fault_has_limits_only(node: TreeNode) -> None:
    files = {"name": "jc42", "temp1_input": "127000", "temp1_max": "85000", "temp1_fault": "1"}
    write(node, "hwmon0", files)
    assert values(HwmonReader(), node) == {("hwmon_temp_max", "jc42-0/temp1"): 85}
    write(node, "hwmon0", {"temp1_fault": "0"})
    assert ("hwmon_temp", "jc42-0/temp1") in values(HwmonReader(), node)


def test_sensors_that_cannot_be_read_cost_themselves_and_are_told_together(
    node: TreeNode,
) -> None:
    write(node, "hwmon0", ALL_KINDS)
    for name in ("temp1_input", "fan1_input"):
        file = node.path / "sys/class/hwmon/hwmon0" / name
        file.unlink()
        file.mkdir()
    reader = HwmonReader()
    found = {metric for metric, _ in values(reader, node)}
    assert found == set(reader.metrics) - {"hwmon_temp", "hwmon_fan"}
    assert reader.errors == [
        "/sys/class/hwmon/hwmon0/temp1_input: Is a directory; 1 more cannot be read"
    ]


def test_a_limit_that_cannot_be_is_none_and_such_a_value_is_told(node: TreeNode) -> None:
    files = {"name": "nvme", "temp2_input": "38850", "temp2_max": "65261850"}
    write(node, "hwmon0", files | {"temp3_input": "65261850"})
    reader = HwmonReader()
    assert values(reader, node) == {("hwmon_temp", "nvme-0/temp2"): 38.85}
    assert reader.errors == ["/sys/class/hwmon/hwmon0/temp3_input: no temperature that can be"]


def test_sensors_come_and_go(node: TreeNode) -> None:
    write(node, "hwmon0", {"name": "coretemp", "temp1_input": "40000"})
    reader = HwmonReader()
    assert set(values(reader, node)) == {("hwmon_temp", "coretemp-0/temp1")}
    write(node, "hwmon0", {"temp2_input": "41000"})
    node.still.passed += 60
    assert ("hwmon_temp", "coretemp-0/temp2") in values(reader, node)
    (node.path / "sys/class/hwmon/hwmon0/temp1_input").unlink()
    assert set(values(reader, node)) == {("hwmon_temp", "coretemp-0/temp2")}


def test_older_kernels_have_the_files_at_the_device(node: TreeNode) -> None:
    write(node, "hwmon0/device", {"name": "w83627", "in0_input": "1016"})
    assert values(HwmonReader(), node) == {("hwmon_voltage", "w83627-0/in0"): 1.016}


def test_a_machine_without_sensors(node: TreeNode) -> None:
    with pytest.raises(NotHereError, match="/sys/class/hwmon"):
        HwmonReader().read(node)
    write(node, "hwmon0", {"name": "acpitz", "uevent": ""})
    with pytest.raises(NotHereError, match="no sensor"):
        HwmonReader().read(node)


@given(st.binary(max_size=40) | st.integers().map(lambda number: b"%d\n" % number))
def test_any_number_is_understood_or_unparsable(content: bytes) -> None:
    with contextlib.suppress(UnparsableError):
        assert parse_sensor(content) == int(content)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode()))
def test_any_label_is_fit_for_a_tag_or_unparsable(content: bytes) -> None:
    with contextlib.suppress(UnparsableError):
        label = parse_label(content)
        assert len(label) <= 64
        encode_tags({"stype-id": f"chip-0/temp1/{label}"})


_NAMES = st.from_regex(r"(temp|fan|in|curr|power|energy)[0-9]{1,7}_(input|average|max|label)")


@pytest.mark.slow
@given(st.sets(_NAMES | st.text(max_size=20)))
def test_any_files_make_sensors_that_are_there(files: set[str]) -> None:
    sensors = find_sensors("chip-0", "d", files)
    assert len({sensor.name for sensor in sensors}) == len(sensors)
    for sensor in sensors:
        assert {path.removeprefix("d/") for path in sensor.paths.values()} <= files
