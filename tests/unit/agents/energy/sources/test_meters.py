"""energy, hwmon: ACPI meters are integrated, Grace's rails told apart, amd_energy counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.energy.accounts import NODE_METER, EnergyDomain, MeasuredEnergy
from ccagent.agents.energy.sources.meters import (
    PM_COUNTERS,
    DcmiSource,
    HwmonEnergySource,
    PmCountersSource,
    find_domain,
    find_node_meter,
    parse_dcmi,
    parse_joules,
    parse_microwatts,
    parse_scan,
)
from ccagent.errors import NotHereError, ProgramError, UnparsableError
from ccagent.machine.sensors import HWMON
from tests.support.energy_tree import EnergyNode

CPU, MEMORY = EnergyDomain("package", -1), EnergyDomain("dram", -1)
FREEIPMI = b"""Current Power                        : %d Watts
Minimum Power over sampling duration : 4 watts
Maximum Power over sampling duration : 1290 watts
Average Power over sampling duration : 415 watts
Time Stamp                           : 08/02/2026 - 15:44:44
Statistics reporting time period     : 1000 milliseconds
Power Measurement                    : Active
"""
IPMITOOL = b"""
    Instantaneous power reading:                   332 Watts
    Minimum during sampling period:                  4 Watts
    Maximum during sampling period:                932 Watts
    Average power reading over sample period:      378 Watts
    IPMI timestamp:                           Sun Nov 22 20:00:00 2026
    Sampling period:                          00000001 Seconds.
    Power reading state is:                   activated


"""


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


def test_amd_energy_is_an_estimate(tmp_path: Path) -> None:
    node, source = EnergyNode(tmp_path), HwmonEnergySource()
    node.write(f"{HWMON}/hwmon0/name", "amd_energy\n")
    for number, label in ((1, "Ecore000"), (2, "Esocket0"), (3, "Esocket1")):
        node.write(f"{HWMON}/hwmon0/energy{number}_label", f"{label}\n")
        node.write(f"{HWMON}/hwmon0/energy{number}_input", "5000000\n")
    source.read(node)
    node.write(f"{HWMON}/hwmon0/energy3_input", "905000000\n")
    node.still.sleep(10)
    assert source.read(node) == {
        EnergyDomain("package", number): MeasuredEnergy(
            energy, 10.0, "amd_energy", is_estimate=True
        )
        for number, energy in ((0, 0), (1, 900_000_000))
    }


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


class Cray:
    """A blade: energies in J by name, and a number of the scan."""

    def __init__(self, root: Path, *names: str) -> None:
        self.node = EnergyNode(root)
        self.source = PmCountersSource()
        self.joules = dict.fromkeys(names, 1000)
        self.scan, self.startup = 1, 4711
        self.show()

    def show(self) -> None:
        for name, joules in self.joules.items():
            self.node.write(f"{PM_COUNTERS}/{name}", f"{joules} J 1700000000 us\n")
        self.node.write(f"{PM_COUNTERS}/power_cap", "0 W\n")
        self.node.write(f"{PM_COUNTERS}/freshness", f"{self.scan}\n")
        self.node.write(f"{PM_COUNTERS}/startup", f"{self.startup}\n")

    def tick(self, joules: int = 500, scans: int = 100) -> dict[EnergyDomain, int | str]:
        """Return energies in J, or flaws, after ten seconds."""
        self.scan += scans
        self.joules = {name: each + joules for name, each in self.joules.items()}
        self.show()
        self.node.still.sleep(10)
        found = self.source.read(self.node)
        return {domain: each.flaw or each.energy // 10**6 for domain, each in found.items()}


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("energy", NODE_METER),
        ("cpu_energy", CPU),
        ("memory_energy", MEMORY),
        ("accel0_energy", EnergyDomain("card", 0)),
        ("accel3_energy", EnergyDomain("card", 3)),
        ("cpu0_energy", EnergyDomain("package", 0)),
        ("cpu1_energy", EnergyDomain("package", 1)),
        ("power", None),
        ("accel0_power", None),
        ("cpu0_temp", None),
        ("xenergy", None),
        ("accel_energy", None),
    ],
)
def test_domains_of_files(name: str, domain: EnergyDomain | None) -> None:
    assert find_domain(name) == domain


def test_lines() -> None:
    assert parse_joules(b"12345 J 1700000000 us\n") == 12_345_000_000
    assert parse_joules(b"7 J") == 7_000_000
    assert parse_scan(b"12\n") == parse_scan(b"12 0 0\n") == 12


@given(st.binary() | st.from_regex(rb"[0-9]{0,20} ?[JW]? ?[0-9]{0,5}( us)?\n?"))
def test_lines_are_understood_or_unparsable(content: bytes) -> None:
    for parse in (parse_joules, parse_scan):
        try:
            assert parse(content) >= 0
        except UnparsableError:
            continue


def test_all_counters_of_a_scan(tmp_path: Path) -> None:
    cray = Cray(tmp_path, "energy", "cpu_energy", "memory_energy", "accel0_energy")
    assert cray.source.read(cray.node) == {}
    assert cray.tick() == {NODE_METER: 500, CPU: 500, MEMORY: 500, EnergyDomain("card", 0): 500}


def test_sockets_are_not_added_to_their_sum(tmp_path: Path) -> None:
    cray = Cray(tmp_path, "energy", "cpu_energy", "cpu0_energy", "cpu1_energy")
    cray.source.read(cray.node)
    assert {*cray.tick()} == {
        NODE_METER, EnergyDomain("package", 0), EnergyDomain("package", 1),
    }  # fmt: skip


def test_without_a_new_scan_nothing_is_known_until_two_are_there(tmp_path: Path) -> None:
    cray = Cray(tmp_path, "energy")
    cray.source.read(cray.node)
    stale = {NODE_METER: "the controller has no new scan"}
    assert cray.tick(0, scans=0) == stale
    assert cray.tick(1000) == stale  # this is the energy of two ticks
    assert cray.tick() == {NODE_METER: 500}


def test_a_new_start_of_the_controller_is_no_energy(tmp_path: Path) -> None:
    cray = Cray(tmp_path, "energy")
    cray.source.read(cray.node)
    cray.tick()
    cray.startup += 1
    assert cray.tick() == {NODE_METER: "the controller has reset its counters"}
    assert cray.tick() == {NODE_METER: 500}


def test_counters_that_start_again_at_0(tmp_path: Path) -> None:
    cray = Cray(tmp_path, "energy")
    cray.source.read(cray.node)
    assert cray.tick(-900) == {NODE_METER: "the counter was reset"}


def test_without_pm_counters_it_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        PmCountersSource().read(EnergyNode(tmp_path))
    (tmp_path / PM_COUNTERS).mkdir(parents=True)
    with pytest.raises(NotHereError):
        PmCountersSource().read(EnergyNode(tmp_path))


def test_a_controller_that_is_faster_than_the_reader_is_an_error(tmp_path: Path) -> None:
    cray = Cray(tmp_path, "energy")
    path = cray.node.path / PM_COUNTERS / "freshness"
    path.write_text("x\n")
    with pytest.raises(UnparsableError):
        cray.source.read(cray.node)


class BmcNode(EnergyNode):
    """A node whose BMC answers by programs; `outputs` by the name of the program."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.outputs: dict[str, bytes | Exception] = {}
        self.calls: list[str] = []

    def run(
        self,
        command: Sequence[str],
        *,
        time_limit: float,
        output_limit: int,
        stop: int | None = None,
        standard_input: bytes = b"",
    ) -> bytes:
        self.calls.append(command[0])
        output = self.outputs.get(command[0], NotHereError(f"{command[0]}: no such program"))
        if isinstance(output, Exception):
            raise output
        return output


def make_source(*command: str) -> DcmiSource:
    source = DcmiSource(command, 30.0, 20.0)
    source.is_patient = True
    return source


def tick(source: DcmiSource, node: BmcNode, seconds: float) -> float | str | None:
    """Return the joules after some seconds, or the flaw."""
    node.still.sleep(seconds)
    source.prepare_reading(node)
    found = source.read(node).get(NODE_METER)
    return None if found is None else found.flaw or found.energy / 1e6


def test_both_programs() -> None:
    assert parse_dcmi(FREEIPMI % 396) == 396_000_000
    assert parse_dcmi(IPMITOOL) == 332_000_000


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"ipmi-dcmi: driver timeout\n",
        FREEIPMI % 0,
        IPMITOOL.replace(b"activated", b"deactivated"),
        (FREEIPMI % 300).replace(b": Active", b": Not Available"),
        IPMITOOL.replace(b"332 Watts", b"many Watts"),
    ],
)
def test_what_is_no_power_of_dcmi(output: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_dcmi(output)


@given(st.binary())
def test_any_output_is_understood_or_unparsable(output: bytes) -> None:
    try:
        assert parse_dcmi(output) > 0
    except UnparsableError:
        return


def test_power_is_held_between_answers(tmp_path: Path) -> None:
    node, source = BmcNode(tmp_path), make_source()
    node.outputs["ipmi-dcmi"] = FREEIPMI % 300
    assert tick(source, node, 10) is None
    assert tick(source, node, 10) == 3000.0
    node.outputs["ipmi-dcmi"] = FREEIPMI % 500
    assert tick(source, node, 10) == 4000.0
    assert node.calls == ["ipmi-dcmi"] * 3
    source.close()


def test_the_other_program_is_asked_where_one_is_missing(tmp_path: Path) -> None:
    node, source = BmcNode(tmp_path), make_source()
    node.outputs["ipmitool"] = IPMITOOL
    tick(source, node, 10)
    assert tick(source, node, 10) == 3320.0
    source.close()


def test_failures_are_bridged_for_a_while(tmp_path: Path) -> None:
    node, source = BmcNode(tmp_path), make_source()
    node.outputs["ipmi-dcmi"] = FREEIPMI % 300
    tick(source, node, 10)
    node.outputs["ipmi-dcmi"] = ProgramError("ipmi-dcmi: driver timeout")
    assert tick(source, node, 60) == 18_000.0
    assert source.errors == ["ipmi-dcmi: driver timeout"]
    assert tick(source, node, 60) is None  # nothing was known for too long
    node.outputs["ipmi-dcmi"] = FREEIPMI % 300
    assert tick(source, node, 60) == "120 s between two readings of power"
    source.close()


def test_without_a_program_it_says_so(tmp_path: Path) -> None:
    node, source = BmcNode(tmp_path), make_source()
    assert tick(source, node, 10) is None
    assert source.errors == [
        "ipmi-dcmi or ipmitool is needed, and not installed: see agents.energy.dcmi-command"
    ]
    source.close()
