"""Sensors that ipmitool and ipmi-sensors print."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.ipmi import (
    IpmiReader,
    IpmiSensor,
    IpmiSettings,
    parse_ipmi_sensors,
)
from ccagent.config.duration import Duration
from ccagent.errors import NotHereError, UnparsableError
from ccagent.records.points import encode_tags
from tests.support.paths import DATA
from tests.support.scripted_programs import ProgramNode

RECORDED = DATA / "metrics" / "ipmi"

# Composed by hand, in the forms of ipmitool 1.8.19 and FreeIPMI 1.6.10.
SENSOR = """\
CPU1 Temp        | 42.000     | degrees C  | ok    | 0.000     | 0.000     | 0.000     | 85.000 |
Inlet Temp       | 70.700     | degrees F  | ok    | na        | na        | na        | na     |
FAN1             | 8400.000   | RPM        | ok    | 300.000   | 500.000   | 700.000   | 25300  |
FAN2             | na         |            | na    | na        | na        | na        | na     |
12V              | 12.063     | Volts      | ok    | 10.173    | 10.299    | 10.740    | 12.945 |
PSU1 Current     | 1.250      | Amps       | ok    | na        | na        | na        | na     |
Pwr Consumption  | 392.000    | Watts      | ok    | na        | na        | na        | 896.0  |
Fan Duty         | 35.280     | percent    | ok    | na        | na        | na        | na     |
Chassis Intru    | 0x0        | discrete   | 0x0000| na        | na        | na        | na     |
"""
SDR = """\
Temp             | 42 degrees C      | ok
Temp             | 44 degrees C      | ok
Temp             | disabled          | ns
Fan1             | 8400 RPM          | ok
"""
CSV = """\
CPU1 Temp,42,degrees C,ok
Rail, 12 V,12.06,Volts,ok
FAN2,,,ns
Intrusion,0x00,discrete,ok
"""
FREEIPMI = """\
ID,Name,Type,Reading,Units,Event
1,CPU1 Temp,Temperature,42.00,C,'OK'
2,FAN2,Fan,N/A,RPM,N/A
3,Rail, 12 V,Voltage,12.06,V,'OK'
4,PSU1 Status,Power Supply,N/A,N/A,'Presence detected','Power Supply input lost (AC/DC)'
71,Pwr Consumption,Current,392.00,W,'OK'
"""
EXTENDED = """\
SEL              | 72h | ns  |  7.1 | No Reading
Intrusion        | 73h | ok  |  7.1 |
Inlet Temp       | 04h | ok  |  7.1 | 42 degrees C
PSU1 In          | 6Ah | ok  | 10.1 | 392 Watts, Presence detected
"""
CSV_WITH_LIMITS = """\
CPU1 Temp,42.000,degrees C,ok,0.000,0.000,0.000,85.000,87.000,90.000
Rail, 12 V,12.063,Volts,ok,10.173,10.299,na,na,12.945,13.260
FAN2,na,RPM,na,na,na,na,na,na,na
"""
MONITORING = """\
ID,Name,Type,State,Reading,Units,Event
1,CPU1 Temp,Temperature,Nominal,42.00,C,'OK'
2,FAN2,Fan,N/A,N/A,RPM,N/A
3,Rail, 12 V,Voltage,Critical,12.06,V,'At or Above (>=) Upper Critical Threshold'
"""
MONITORING_TABLE = """\
ID  | Name      | Type        | State    | Reading    | Units | Event
1   | CPU1 Temp | Temperature | Nominal  | 42.00      | C     | 'OK'
2   | FAN2      | Fan         | N/A      | N/A        | RPM   | N/A
"""
FREEIPMI_TABLE = """\
ID  | Name      | Type        | Reading    | Units | Event
1   | CPU1 Temp | Temperature | 42.00      | C     | 'OK'
"""


@pytest.mark.parametrize(
    ("text", "sensors"),
    [
        (
            SENSOR,
            [
                ("CPU1 Temp", "temp", 42), ("Inlet Temp", "temp", pytest.approx(21.5)),
                ("FAN1", "fan", 8400), ("12V", "voltage", 12.063),
                ("PSU1 Current", "current", 1.25), ("Pwr Consumption", "power", 392),
                ("Fan Duty", "share", 35.28),
            ],
        ),
        (SDR, [("Temp", "temp", 42), ("Temp#2", "temp", 44), ("Fan1", "fan", 8400)]),
        (CSV, [("CPU1 Temp", "temp", 42), ("Rail, 12 V", "voltage", 12.06)]),
        (
            FREEIPMI,
            [
                ("CPU1 Temp", "temp", 42), ("Rail, 12 V", "voltage", 12.06),
                ("Pwr Consumption", "power", 392),
            ],
        ),
        (EXTENDED, [("Inlet Temp", "temp", 42), ("PSU1 In", "power", 392)]),
        (CSV_WITH_LIMITS, [("CPU1 Temp", "temp", 42), ("Rail, 12 V", "voltage", 12.063)]),
        (MONITORING, [("CPU1 Temp", "temp", 42), ("Rail, 12 V", "voltage", 12.06)]),
        (MONITORING_TABLE, [("CPU1 Temp", "temp", 42)]),
        (FREEIPMI_TABLE, [("CPU1 Temp", "temp", 42)]),
    ],
    ids=[
        "sensor", "sdr", "csv", "freeipmi", "extended", "csv-with-limits", "monitoring",
        "monitoring-table", "freeipmi-table",
    ],
)  # fmt: skip
def test_sensors_with_numbers_have_a_kind(text: str, sensors: list[tuple[str, str, float]]) -> None:
    assert parse_ipmi_sensors(text.encode()) == sensors


@pytest.mark.parametrize(
    "name", ["ipmitool-sdr", "ipmitool-csv", "ipmitool-sensor", "ipmi-sensors"]
)
def test_recorded_outputs_have_the_same_sensors(name: str) -> None:
    """Outputs of real tools; see the README beside them."""
    assert parse_ipmi_sensors((RECORDED / f"{name}.txt").read_bytes()) == [
        ("CPU1 Temp", "temp", 42), ("FAN1", "fan", 84), ("Rail, 12 V", "voltage", 12),
        ("PSU1 Iin", "current", 2), ("Pwr", "power", 200),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "Could not open device at /dev/ipmi0\n", "CPU1 Temp,42"])
def test_what_is_no_list_of_sensors(text: str) -> None:
    with pytest.raises(UnparsableError):
        parse_ipmi_sensors(text.encode())


def test_a_line_that_is_cut_off_is_left_out() -> None:
    text = CSV + "CPU2 Temp,4"
    assert parse_ipmi_sensors(text.encode()) == parse_ipmi_sensors(CSV.encode())


def test_hostile_names_are_labels() -> None:
    text = 'a"b\\,value=1 9\x1b[2J,42,degrees C,ok\n'
    (sensor,) = parse_ipmi_sensors(text.encode())
    assert sensor.name == "a?b?,value=1 9?[2J"
    assert encode_tags({"stype-id": sensor.name})


@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda text: (SENSOR + text).encode()))
def test_any_output_is_sensors_or_unparsable(content: bytes) -> None:
    try:
        sensors = parse_ipmi_sensors(content)
    except UnparsableError:
        return
    assert all(isinstance(each, IpmiSensor) and abs(each.value) < 1e13 for each in sensors)
    assert len({each.name for each in sensors}) <= len(sensors)


@pytest.fixture
def node(tmp_path: Path) -> ProgramNode:
    node = ProgramNode(tmp_path)
    node.write("../dev/ipmi0", "")
    return node


def patient(settings: IpmiSettings | None = None) -> IpmiReader:
    reader = IpmiReader(settings)
    reader.is_patient = True
    return reader


def test_ipmitool_is_asked_first(node: ProgramNode) -> None:
    node.programs = {"ipmitool": CSV, "ipmi-sensors": FREEIPMI}
    reader = patient()
    found = {(each.metric, each.scope.stype, each.scope.stype_id): each.value
             for each in reader.read(node)}  # fmt: skip
    assert found == {
        ("ipmi_temp", "sensor", "CPU1 Temp"): 42,
        ("ipmi_voltage", "sensor", "Rail, 12 V"): 12.06,
    }
    assert node.commands == [("ipmitool", "-c", "sdr", "list", "full")]
    reader.close()


def test_freeipmi_stands_in_for_it(node: ProgramNode) -> None:
    node.programs = {"ipmi-sensors": FREEIPMI}
    reader = patient()
    assert len(list(reader.read(node))) == 3
    assert reader.errors == []
    reader.close()


def test_an_error_says_which_program_to_install(node: ProgramNode) -> None:
    reader = patient()
    assert list(reader.read(node)) == []
    assert reader.errors == [
        (
            "neither ipmitool nor ipmi-sensors is installed: install one of them,"
            " or set agents.metrics.ipmi.command"
        )
    ]
    reader.close()


def test_a_configured_command_needs_no_device(tmp_path: Path) -> None:
    node = ProgramNode(tmp_path)
    node.programs = {"/opt/bmc": SENSOR}
    reader = patient(IpmiSettings(command=("/opt/bmc", "--all")))
    assert len(list(reader.read(node))) == 7
    assert node.commands == [("/opt/bmc", "--all")]
    reader.close()


def test_a_configured_command_that_is_missing_is_an_error(tmp_path: Path) -> None:
    reader = patient(IpmiSettings(command=("/opt/bmc",)))
    assert list(reader.read(ProgramNode(tmp_path))) == []
    assert reader.errors == ["/opt/bmc: no such program; see agents.metrics.ipmi.command"]
    reader.close()


def test_a_machine_without_a_bmc_runs_nothing(tmp_path: Path) -> None:
    node = ProgramNode(tmp_path)
    with pytest.raises(NotHereError, match="no BMC"):
        patient().read(node)
    assert node.commands == []


def test_nothing_is_run_that_nobody_wants(node: ProgramNode) -> None:
    reader = patient()
    reader.wanted = frozenset({"cpu_user"})
    assert reader.read(node) == []
    assert node.commands == []


def test_a_slow_program_stalls_no_sample(node: ProgramNode) -> None:
    node.programs = {"ipmitool": CSV}
    node.is_slow = True
    reader = IpmiReader(IpmiSettings(every=Duration("1m")))
    assert list(reader.read(node)) == []
    node.clock.sleep(60)
    assert list(reader.read(node)) == []
    assert reader.errors == ["still running; not started again"]
    node.let_end()
    reader.is_patient = True
    assert list(reader.read(node))
    reader.close()


def test_garbage_is_an_error_and_nothing_else(node: ProgramNode) -> None:
    node.programs = {"ipmitool": "Segmentation fault\n"}
    reader = patient()
    assert list(reader.read(node)) == []
    assert reader.errors == ["IPMI program: no sensor: 'Segmentation fault\\n'"]
    reader.close()


def test_a_command_has_a_program() -> None:
    with pytest.raises(ValueError, match="without a program"):
        IpmiSettings(command=("", "sensor"))
