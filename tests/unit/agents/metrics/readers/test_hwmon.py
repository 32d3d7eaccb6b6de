"""Sensors in /sys/class/hwmon: all kinds and their limits; of processors, by core and socket."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.base import NODE, Gauge, Scope
from ccagent.agents.metrics.readers.hwmon import (
    HwmonReader,
    TemperatureReader,
    find_sensors,
    parse_temperature,
)
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.node import Node
from ccagent.machine.sensors import parse_label, parse_sensor
from ccagent.records.points import encode_tags
from tests.support.paths import MACHINES
from tests.support.recorded import RecordedNode
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

HWMON = "sys/class/hwmon"
S0, S1 = Scope("socket", "0"), Scope("socket", "1")


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


def thread(number: int) -> Scope:
    return Scope("hwthread", str(number))


class Processors:
    """A tree with cpus and chips. cpus: by number, socket, die and core."""

    def __init__(self, root: Path, cpus: dict[int, tuple[int, int, int]]) -> None:
        self.root = root
        self.node = Node(root=str(root), hostname="n1", cluster="c1")
        self.reader = TemperatureReader()
        (root / HWMON).mkdir(parents=True)
        for number, (socket, die, core) in cpus.items():
            directory = f"sys/devices/system/cpu/cpu{number}/topology"
            self.write(f"{directory}/physical_package_id", f"{socket}\n")
            self.write(f"{directory}/die_id", f"{die}\n")
            self.write(f"{directory}/core_id", f"{core}\n")
        self.online(",".join(map(str, sorted(cpus))))

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def online(self, cpus: str) -> None:
        self.write("sys/devices/system/cpu/online", f"{cpus}\n")

    def chip(
        self, number: int, name: str, *sensors: tuple[str, int | str], device: str = ""
    ) -> None:
        """Add a chip; sensors: label (empty: none) and content, from temp1 on."""
        scope = f"{device}/hwmon/hwmon{number}" if device else f"{HWMON}/hwmon{number}"
        self.write(f"{scope}/name", f"{name}\n")
        for index, (label, value) in enumerate(sensors, 1):
            self.write(f"{scope}/temp{index}_input", f"{value}\n")
            self.write(f"{scope}/temp{index}_max", "100000\n")
            if label:
                self.write(f"{scope}/temp{index}_label", f"{label}\n")
        if device:
            link = self.root / HWMON / f"hwmon{number}"
            link.symlink_to(self.root / scope, target_is_directory=True)

    def coretemp(self, number: int, zone: int, *sensors: tuple[str, int]) -> None:
        self.chip(number, "coretemp", *sensors, device=f"sys/devices/platform/coretemp.{zone}")

    def amd(self, number: int, address: str, *sensors: tuple[str, int]) -> None:
        self.chip(number, "k10temp", *sensors, device=f"sys/bus/pci/drivers/k10temp/{address}")

    def read(self) -> dict[tuple[str, Scope], float]:
        found = list(self.reader.read(self.node))
        values = {(one.metric, one.scope): one.value for one in found}
        assert len(values) == len(found)
        return values


TWO_SOCKETS = {0: (0, 0, 0), 1: (1, 0, 0), 2: (0, 0, 4), 3: (1, 0, 4),
               4: (0, 0, 0), 5: (1, 0, 0), 6: (0, 0, 4), 7: (1, 0, 4)}  # fmt: skip
"""Two sockets, two cores each, two threads a core; numbered as Linux does on Intel."""


@pytest.mark.parametrize(
    ("text", "degrees"),
    [
        (b"45000\n", 45.0),
        (b"45125\n", 45.125),
        (b"0\n", 0.0),
        (b"-5500\n", -5.5),
        (b"-60000", -60.0),
        (b"150000", 150.0),
    ],
)
def test_temperatures_are_in_millidegrees(text: bytes, degrees: float) -> None:
    assert parse_temperature(text) == degrees


@pytest.mark.parametrize("text", [b"", b"N/A", b"--5", b"4.5", b"-", b"+1", b"1 2", b"\xb2"])
def test_what_is_no_temperature(text: bytes) -> None:
    with pytest.raises(UnparsableError, match="not a number"):
        parse_temperature(text)


@pytest.mark.parametrize("text", [b"-128000", b"-60001", b"150001", b"255000", b"4294967295"])
def test_what_no_processor_can_be(text: bytes) -> None:
    with pytest.raises(UnparsableError, match="below -60 or above 150 degrees"):
        parse_temperature(text)


@given(st.binary() | st.integers().map(lambda number: f"{number}\n".encode()))
def test_temperatures_are_understood_or_unparsable(content: bytes) -> None:
    try:
        degrees = parse_temperature(content)
    except UnparsableError:
        return
    assert -60 <= degrees <= 150


def test_intel_tells_of_packages_and_cores(tmp_path: Path) -> None:
    machine = Processors(tmp_path, TWO_SOCKETS)
    machine.chip(0, "acpitz", ("", 99000))
    machine.coretemp(2, 0, ("Package id 0", 50000), ("Core 0", 48000), ("Core 4", 47000))
    machine.coretemp(1, 1, ("Package id 1", 61000), ("Core 0", 60000), ("Core 4", -1000))
    assert machine.read() == {
        ("temp_package", S0): 50.0, ("temp_package", S1): 61.0, ("temp_package", NODE): 61.0,
        ("temp_core", thread(0)): 48.0, ("temp_core", thread(4)): 48.0,
        ("temp_core", thread(2)): 47.0, ("temp_core", thread(6)): 47.0,
        ("temp_core", thread(1)): 60.0, ("temp_core", thread(5)): 60.0,
        ("temp_core", thread(3)): -1.0, ("temp_core", thread(7)): -1.0,
        ("temp_core", NODE): 60.0,
    }  # fmt: skip
    assert machine.reader.errors == []


def test_the_label_of_the_package_tells_the_socket_where_no_device_does(tmp_path: Path) -> None:
    machine = Processors(tmp_path, TWO_SOCKETS)
    machine.chip(0, "coretemp", ("Physical id 1", 61000), ("Core 4", 60000))
    found = machine.read()
    assert found["temp_package", S1] == 61.0
    assert found["temp_core", thread(7)] == 60.0
    assert ("temp_core", thread(6)) not in found


def test_dies_of_a_package_are_told_apart_and_the_hotter_is_its_temperature(tmp_path: Path) -> None:
    cpus = {0: (0, 0, 0), 1: (0, 1, 0), 2: (1, 0, 0), 3: (1, 1, 0)}
    machine = Processors(tmp_path, cpus)
    for zone in range(4):
        package = (f"Package id {zone}", 40000 + 1000 * zone)
        machine.coretemp(zone, zone, package, ("Core 0", 30000 + 1000 * zone))
    assert machine.read() == {
        ("temp_package", S0): 41.0, ("temp_package", S1): 43.0, ("temp_package", NODE): 43.0,
        ("temp_core", thread(0)): 30.0, ("temp_core", thread(1)): 31.0,
        ("temp_core", thread(2)): 32.0, ("temp_core", thread(3)): 33.0,
        ("temp_core", NODE): 33.0,
    }  # fmt: skip


def test_sockets_with_odd_numbers_are_counted_by_the_kernel(tmp_path: Path) -> None:
    machine = Processors(tmp_path, {0: (0, 0, 0), 1: (3, 0, 0)})
    machine.coretemp(0, 1, ("Package id 1", 50000), ("Core 0", 49000))
    assert machine.read() == {
        ("temp_package", Scope("socket", "3")): 50.0, ("temp_package", NODE): 50.0,
        ("temp_core", thread(1)): 49.0, ("temp_core", NODE): 49.0,
    }  # fmt: skip


def test_a_kernel_before_dies_numbers_sockets(tmp_path: Path) -> None:
    machine = Processors(tmp_path, {0: (0, 0, 0), 1: (3, 0, 0)})
    for cpu in (0, 1):
        (tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/die_id").unlink()
    machine.coretemp(0, 3, ("Physical id 3", 50000), ("Core 0", 49000))
    found = machine.read()
    assert found["temp_package", Scope("socket", "3")] == 50.0
    assert found["temp_core", thread(1)] == 49.0
    assert machine.reader.errors == []


def test_old_kernels_have_the_files_in_the_directory_of_the_device(tmp_path: Path) -> None:
    machine = Processors(tmp_path, {0: (0, 0, 0)})
    machine.write(f"{HWMON}/hwmon0/device/name", "coretemp\n")
    machine.write(f"{HWMON}/hwmon0/device/temp2_input", "49000\n")
    machine.write(f"{HWMON}/hwmon0/device/temp2_label", "Core 0\n")
    assert machine.read() == {("temp_core", thread(0)): 49.0, ("temp_core", NODE): 49.0}


def test_the_processors_of_amd_are_in_the_order_of_their_addresses(tmp_path: Path) -> None:
    machine = Processors(tmp_path, {0: (0, 0, 0), 1: (1, 0, 0)})
    machine.amd(3, "0000:00:19.3", ("Tctl", 62125), ("Tccd1", 70000))
    machine.amd(4, "0000:00:18.3", ("Tctl", 40500), ("Tccd1", 39000))
    assert machine.read() == {
        ("temp_package", S0): 40.5, ("temp_package", S1): 62.125, ("temp_package", NODE): 62.125,
    }  # fmt: skip


def test_four_dies_make_a_socket_of_the_first_epyc(tmp_path: Path) -> None:
    machine = Processors(tmp_path, {0: (0, 0, 0), 1: (1, 0, 0)})
    for die in range(8):
        machine.amd(die, f"0000:00:{0x18 + die:02x}.3", ("Tctl", 60000 - 1000 * die))
    assert machine.read() == {
        ("temp_package", S0): 60.0, ("temp_package", S1): 56.0, ("temp_package", NODE): 60.0,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["k10temp", "zenpower"])
def test_the_temperature_counts_not_what_steers_the_fans(tmp_path: Path, name: str) -> None:
    machine = Processors(tmp_path, {0: (0, 0, 0)})
    machine.chip(0, name, ("Tctl", 90000), ("Tdie", 63000), ("Tccd1", 99000))
    assert machine.read() == {("temp_package", S0): 63.0, ("temp_package", NODE): 63.0}


def test_an_old_amd_has_one_sensor_without_a_label(tmp_path: Path) -> None:
    machine = Processors(tmp_path, {0: (0, 0, 0)})
    machine.chip(0, "k10temp", ("", 41250))
    assert machine.read()["temp_package", S0] == 41.25


def test_what_cannot_be_shared_out_is_of_the_node(tmp_path: Path) -> None:
    machine = Processors(tmp_path, {0: (0, 0, 0), 1: (1, 0, 0)})
    machine.chip(0, "cpu_thermal", ("", 41000))
    assert machine.read() == {("temp_package", NODE): 41.0}


@pytest.mark.parametrize(
    ("name", "sensors"),
    [
        (
            "smpro_hwmon",
            [("temp1 SoC", 55000), ("temp2 SoC VRD", 70000), ("temp5 CH0 DIMM", 80000)],
        ),
        ("apm_xgene", [("SoC Temperature", 55000)]),
        ("cpu_thermal", [("", 55000)]),
        ("soc_thermal", [("", 55000)]),
        ("cpu0_thermal", [("", 55000)]),
    ],
)
def test_arm_has_sensors_of_the_chip(
    tmp_path: Path, name: str, sensors: list[tuple[str, int]]
) -> None:
    shutil.copytree(MACHINES / "aarch64", tmp_path / "aarch64")
    root = tmp_path / "aarch64"
    for index, (label, value) in enumerate(sensors, 1):
        directory = root / HWMON / "hwmon0"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "name").write_text(f"{name}\n")
        (directory / f"temp{index}_input").write_text(f"{value}\n")
        if label:
            (directory / f"temp{index}_label").write_text(f"{label}\n")
    reader = TemperatureReader()
    assert list(reader.read(RecordedNode("aarch64", tmp_path))) == [
        Gauge("temp_package", 55.0, Scope("socket", "36")),
        Gauge("temp_package", 55.0, NODE),
    ]
    assert reader.errors == []


def test_where_the_kernel_knows_no_sockets_there_is_one(tmp_path: Path) -> None:
    machine = Processors(tmp_path, {0: (-1, -1, 0), 1: (-1, -1, 1)})
    machine.chip(0, "cpu_thermal", ("", 41000))
    assert machine.read()["temp_package", S0] == 41.0


def test_a_broken_sensor_costs_only_itself(tmp_path: Path) -> None:
    machine = Processors(tmp_path, TWO_SOCKETS)
    machine.coretemp(0, 0, ("Package id 0", 255000), ("Core 0", 48000))
    path = f"{HWMON}/hwmon0/temp3_input"
    (tmp_path / path).mkdir()
    machine.write(f"{HWMON}/hwmon0/temp3_label", "Core 4\n")
    assert machine.read() == {
        ("temp_core", thread(0)): 48.0, ("temp_core", thread(4)): 48.0, ("temp_core", NODE): 48.0,
    }  # fmt: skip
    assert machine.reader.errors == [
        f"/{HWMON}/hwmon0/temp1_input: below -60 or above 150 degrees",
        f"/{path}: Is a directory",
    ]
    machine.write(f"{HWMON}/hwmon0/temp1_input", "49000\n")
    assert machine.read()["temp_package", S0] == 49.0
    assert len(machine.reader.errors) == 1


def test_cores_that_come_and_go_take_their_sensors_along(tmp_path: Path) -> None:
    machine = Processors(tmp_path, TWO_SOCKETS)
    machine.coretemp(0, 0, ("Package id 0", 50000), ("Core 0", 48000), ("Core 4", 47000))
    assert ("temp_core", thread(2)) in machine.read()
    machine.online("0,1,3-5,7")
    for file in ("input", "label"):
        path = tmp_path / HWMON / "hwmon0" / f"temp3_{file}"
        path.rename(path.with_name(f"gone_{file}"))
    found = machine.read()
    assert ("temp_core", thread(2)) not in found
    assert ("temp_core", thread(4)) in found
    assert machine.reader.errors == []


def test_a_chip_without_a_readable_label_comes_back(tmp_path: Path) -> None:
    machine = Processors(tmp_path, {0: (0, 0, 0)})
    machine.chip(0, "k10temp", ("Tctl", 40000))
    machine.chip(1, "zenpower", ("", 41000))
    label = tmp_path / HWMON / "hwmon1" / "temp1_label"
    label.mkdir()
    assert machine.read() == {("temp_package", S0): 40.0, ("temp_package", NODE): 40.0}
    assert machine.reader.errors == [f"/{HWMON}/hwmon1/temp1_label: Is a directory"]
    label.rmdir()
    assert machine.read()["temp_package", S0] == 41.0
    assert machine.reader.errors == []


def test_a_sensor_that_goes_away_does_so_silently(tmp_path: Path) -> None:
    machine = Processors(tmp_path, {0: (0, 0, 0)})
    machine.chip(0, "k10temp", ("Tctl", 40000))
    machine.read()
    (tmp_path / HWMON / "hwmon0" / "temp1_input").unlink()
    assert machine.read() == {}
    assert machine.reader.errors == []


def test_a_cpu_without_topology_costs_only_its_own(tmp_path: Path) -> None:
    machine = Processors(tmp_path, TWO_SOCKETS)
    machine.coretemp(0, 0, ("Core 0", 48000))
    machine.write("sys/devices/system/cpu/cpu0/topology/core_id", "zero\n")
    machine.write("sys/devices/system/cpu/cpu1/topology/core_id", "zero\n")
    assert machine.read() == {("temp_core", thread(4)): 48.0, ("temp_core", NODE): 48.0}
    assert machine.reader.errors == [
        "/sys/devices/system/cpu/cpu0/topology/core_id: not a number: b'zero'"
    ]
    machine.write("sys/devices/system/cpu/cpu0/topology/core_id", "0\n")
    machine.write("sys/devices/system/cpu/cpu1/topology/core_id", "0\n")
    assert ("temp_core", thread(0)) in machine.read()
    assert machine.reader.errors == []


@pytest.mark.parametrize("name", ["nvme", "acpitz", "drivetemp", "coretemp2", "\xff"])
def test_other_sensors_are_none_of_a_processor(tmp_path: Path, name: str) -> None:
    machine = Processors(tmp_path, {0: (0, 0, 0)})
    machine.chip(0, name, ("Package id 0", 40000), ("Tctl", 40000))
    with pytest.raises(NotHereError, match="/sys/class/hwmon: no sensor of a processor"):
        machine.read()


def test_a_machine_without_sensors_has_none(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        TemperatureReader().read(Node(root=str(tmp_path), hostname="n1", cluster="c1"))


def test_this_machine_has_the_sensors_that_psutil_knows() -> None:
    known = psutil.sensors_temperatures()
    labels = {one.label.split(" id ")[0].split(" ")[0] for one in known.get("coretemp", ())}
    others = {"k10temp", "zenpower", "smpro_hwmon", "apm_xgene", "cpu_thermal", "soc_thermal"}
    found: set[str] = set()
    with contextlib.suppress(NotHereError):
        found = {one.metric for one in TemperatureReader().read(Node(cluster="c1"))}
    assert ("temp_core" in found) == ("Core" in labels)
    assert ("temp_package" in found) == ("Package" in labels or bool(others & known.keys()))
