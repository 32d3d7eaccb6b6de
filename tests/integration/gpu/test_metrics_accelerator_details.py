"""What cards tell on demand, through the makers' real bindings and scripted libraries."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from ccagent.agents.metrics.agent import MetricsAgent
from ccagent.agents.metrics.cluster_config import cluster_config
from ccagent.agents.metrics.readers.accelerators import (
    DETAILS,
    AcceleratorsReader,
    AcceleratorsSettings,
)
from ccagent.agents.metrics.readers.base import Count, Scope
from ccagent.agents.metrics.settings import MetricsSettings
from ccagent.config.duration import Duration
from ccagent.config.files import convert
from ccagent.machine.gpu.nvml import ACTIVITY, TRAFFIC
from ccagent.records.encoding import encode
from tests.support.gpu_libraries import Libraries
from tests.support.gpu_machine import Machine
from tests.support.gpu_scenarios import (
    AMD,
    AMD_ADDRESSES,
    AMD_DETAILS,
    H100_DETAILS,
    MIG,
    NVIDIA,
    NVIDIA_ADDRESSES,
)

NVML: Any = pynvml
FIRST = Scope("accelerator", "00000000:0E:00.0")
SECOND = Scope("accelerator", "00000000:C1:00.0")
LINKS = [FIRST._replace(stype="nvlink", stype_id=str(link)) for link in range(3)]
AMD_FIRST = Scope("accelerator", "00000000:C5:00.0")
EXPECTED = {
    "acc_xid_errors": {FIRST: 2},
    "acc_xid": {FIRST: 48},
    "acc_ecc_enabled": {FIRST: 1},
    "acc_ecc_corrected": {FIRST: 12},
    "acc_ecc_uncorrected": {FIRST: 3},
    "acc_ecc_corrected_volatile": {FIRST: 2},
    "acc_ecc_uncorrected_volatile": {FIRST: 0},
    "acc_retired_pages": {FIRST: 5},
    "acc_retired_pages_single_bit": {FIRST: 4},
    "acc_retired_pages_double_bit": {FIRST: 1},
    "acc_retired_pages_pending": {FIRST: 1},
    "acc_remapped_rows_corrected": {FIRST: 1},
    "acc_remapped_rows_uncorrected": {FIRST: 2},
    "acc_remapped_rows_pending": {FIRST: 1},
    "acc_remapped_rows_failure": {FIRST: 0},
    "acc_pcie_replays": {FIRST: 6},
    "acc_pcie_tx": {FIRST: 1024000},
    "acc_pcie_rx": {FIRST: 3072000},
    "acc_throttle_idle": {FIRST: 0},
    "acc_throttle_clock_setting": {FIRST: 0},
    "acc_throttle_power_cap": {FIRST: 1},
    "acc_throttle_hw_slowdown": {FIRST: 0},
    "acc_throttle_sync_boost": {FIRST: 0},
    "acc_throttle_sw_thermal": {FIRST: 0},
    "acc_throttle_hw_thermal": {FIRST: 1},
    "acc_throttle_power_brake": {FIRST: 0},
    "acc_throttle_display": {FIRST: 0},
    "acc_violation_power": {FIRST: 5.25},
    "acc_violation_thermal": {FIRST: 1.024897024},
    "acc_mem_temperature": {FIRST: 64},
    "acc_mem_utilization": {FIRST: 40, SECOND: 0},
    "acc_encoder_utilization": {FIRST: 7},
    "acc_decoder_utilization": {FIRST: 0},
    "acc_jpeg_utilization": {FIRST: 3},
    "acc_ofa_utilization": {FIRST: 4},
    "acc_performance_state": {FIRST: 0},
    "acc_fan": {SECOND: 104},
    "acc_graphics_clock": {FIRST: 1740e6},
    "acc_video_clock": {FIRST: 1545e6},
    "acc_max_clock": {FIRST: 1980e6},
    "acc_max_mem_clock": {FIRST: 2619e6},
    "acc_max_graphics_clock": {FIRST: 1980e6},
    "acc_max_video_clock": {FIRST: 1545e6},
    "acc_energy": {FIRST: 123456.789},
    "acc_power_average": {FIRST: 123456789},
    "acc_nvlink_active": {FIRST: 2},
    "acc_nvlink_link_active": {LINKS[0]: 1, LINKS[1]: 1, LINKS[2]: 0},
    "acc_nvlink_tx": {FIRST: 3145728},
    "acc_nvlink_rx": {FIRST: 2097152},
    "acc_nvlink_link_tx": {LINKS[0]: 1048576, LINKS[1]: 2097152},
    "acc_nvlink_link_rx": {LINKS[0]: 2097152},
    "acc_nvlink_replay_errors": {FIRST: 11},
    "acc_nvlink_link_replay_errors": {LINKS[0]: 5, LINKS[1]: 6},
    "acc_nvlink_recovery_errors": {FIRST: 1},
    "acc_nvlink_link_recovery_errors": {LINKS[0]: 1},
    "acc_nvlink_crc_flit_errors": {FIRST: 21},
    "acc_nvlink_link_crc_flit_errors": {LINKS[0]: 21},
    "acc_nvlink_crc_errors": {FIRST: 31},
    "acc_nvlink_link_crc_errors": {LINKS[0]: 31},
    "acc_nvlink_ecc_errors": {FIRST: 41},
    "acc_nvlink_link_ecc_errors": {LINKS[0]: 41},
}
"""Of NVIDIA and H100_DETAILS: gauges in base units, counters as they are."""
AMD_ONLY = {
    "acc_media_utilization", "acc_throttle_prochot", "acc_throttle_vr_thermal",
    "acc_throttle_mem_thermal", "acc_xgmi_tx", "acc_xgmi_rx",
}  # fmt: skip
UNTOLD = {
    "acc_violation_sync_boost", "acc_violation_board_limit", "acc_violation_low_util",
    "acc_violation_reliability", "acc_violation_below_app_clock",
    "acc_violation_below_base_clock",
}  # fmt: skip
"""What the scenario has no line for."""
ASKED = {
    "nvmlDeviceRegisterEvents 0": {"acc_xid", "acc_xid_errors"},
    "nvmlEventSetCreate": {"acc_xid", "acc_xid_errors"},
    "nvmlDeviceGetEccMode 0": {"acc_ecc_enabled"},
    "nvmlDeviceGetTotalEccErrors 0 1 1": {"acc_ecc_uncorrected"},
    "nvmlDeviceGetFieldValues 0": {
        name
        for name in EXPECTED
        if "retired" in name
        or "violation" in name
        or name.endswith(("link_tx", "link_rx", "mem_temperature"))
    },
    "nvmlDeviceGetFieldValues 0 30 0": {"acc_retired_pages", "acc_retired_pages_double_bit"},
    "nvmlDeviceGetFieldValues 0 138 4294967295": {"acc_nvlink_tx"},
    "nvmlDeviceGetRemappedRows 0": {name for name in EXPECTED if "remapped" in name},
    "nvmlDeviceGetCurrentClocksEventReasons 0": {name for name in EXPECTED if "throttle" in name},
    "nvmlDeviceGetPcieReplayCounter 0": {"acc_pcie_replays"},
    "nvmlDeviceGetPcieThroughput 0 0": {"acc_pcie_tx"},
    "nvmlDeviceGetClockInfo 0 3": {"acc_video_clock"},
    "nvmlDeviceGetMaxClockInfo 0 1": {"acc_max_clock"},
    "nvmlDeviceGetEncoderUtilization 0": {"acc_encoder_utilization"},
    "nvmlDeviceGetDecoderUtilization 0": {"acc_decoder_utilization"},
    "nvmlDeviceGetTotalEnergyConsumption 0": {"acc_energy", "acc_power_average"},
    "nvmlDeviceGetPerformanceState 0": {"acc_performance_state"},
}
"""By function: the metrics that are lost without it."""
ON_DEMAND = sorted(ASKED.keys() - {"nvmlDeviceGetPerformanceState 0"})
"""Functions that nothing else calls."""


class Cards:
    """A machine with cards and the reader that looks at them."""

    def __init__(self, machine: Machine, time_limit: str = "30s") -> None:
        self.machine = machine
        self.reader = AcceleratorsReader(AcceleratorsSettings(time_limit=Duration(time_limit)))

    def nvidia(self, *scenarios: str) -> None:
        self.machine.cards("nvidia", NVIDIA_ADDRESSES)
        self.machine.libraries.play(NVIDIA, *scenarios)

    def details(self) -> dict[str, dict[Scope, float]]:
        """Read, and return what was read on demand."""
        found: dict[str, dict[Scope, float]] = {}
        for metric, value, scope, *_ in self.reader.read(self.machine.node):
            if metric in DETAILS:
                assert scope not in found.setdefault(metric, {})
                found[metric][scope] = value
        return found


@pytest.fixture
def cards(machine: Machine) -> Iterator[Cards]:
    cards = Cards(machine)
    yield cards
    cards.reader.close()


def test_a_card_has_details(cards: Cards) -> None:
    cards.nvidia(H100_DETAILS)
    found = cards.details()
    for metric, expected in EXPECTED.items():
        assert found[metric] == pytest.approx(expected), metric
    assert found.keys() == EXPECTED.keys()
    assert cards.reader.errors == []


def test_every_detail_is_in_a_scenario() -> None:
    of_gpm = {f"acc_{name}" for name in (ACTIVITY | TRAFFIC)}
    of_gpm |= {f"acc_instance_{name}" for name in ACTIVITY}
    assert EXPECTED.keys() | AMD_ONLY | UNTOLD | of_gpm == DETAILS.keys()
    assert not any(metric.is_default for metric in DETAILS.values())


def test_details_are_not_asked_for_unless_wanted(cards: Cards) -> None:
    cards.nvidia(H100_DETAILS, *(f"{function} = crash" for function in ON_DEMAND))
    cards.reader.wanted = frozenset({"acc_power"})
    values = [*cards.reader.read(cards.machine.node)]
    assert FIRST in {value.scope for value in values if value.metric == "acc_power"}
    assert not DETAILS.keys() & {value.metric for value in values}
    assert cards.reader.errors == []


@pytest.mark.parametrize("function", ASKED)
def test_what_a_card_does_not_support_costs_its_details(cards: Cards, function: str) -> None:
    cards.nvidia(H100_DETAILS, f"{function} = !3")
    assert cards.details().keys() == EXPECTED.keys() - ASKED[function]
    assert cards.reader.errors == []


@pytest.mark.parametrize("code", [2, 4, 13, 999])
def test_what_fails_otherwise_costs_its_details_too(cards: Cards, code: int) -> None:
    cards.nvidia(H100_DETAILS, *(f"{function} = !{code}" for function in ASKED))
    assert cards.details().keys() == EXPECTED.keys() - set().union(*ASKED.values())
    assert cards.reader.errors == []


def test_an_older_driver_has_another_name_for_reasons(cards: Cards) -> None:
    cards.nvidia(
        H100_DETAILS,
        "nvmlDeviceGetCurrentClocksEventReasons 0 = !13",
        "nvmlDeviceGetCurrentClocksThrottleReasons 0 = 0x1",
    )
    found = cards.details()
    assert found["acc_throttle_idle"] == {FIRST: 1}
    assert found["acc_throttle_power_cap"] == {FIRST: 0}


def test_a_fan_that_stands_still_is_known(cards: Cards) -> None:
    cards.nvidia("nvmlDeviceGetFanSpeed 1 = 0")
    assert cards.details()["acc_fan"] == {SECOND: 0}


def test_a_card_without_nvlink_has_no_links(cards: Cards) -> None:
    lines = [line for line in H100_DETAILS.splitlines() if "NvLink" not in line]
    cards.nvidia(*(line for line in lines if " 138 " not in line and " 139 " not in line))
    assert not [name for name in cards.details() if "nvlink" in name]


def test_a_divided_card_has_its_own_details(cards: Cards) -> None:
    cards.nvidia(H100_DETAILS, MIG, "nvmlDeviceGetEncoderUtilization 0 = !3")
    found = cards.details()
    assert found["acc_ecc_corrected"] == {FIRST: 12}
    assert "acc_encoder_utilization" not in found
    assert found["acc_mem_utilization"] == {SECOND: 0}


def test_a_card_that_is_lost_meanwhile_has_no_details(cards: Cards) -> None:
    cards.nvidia(H100_DETAILS, "nvmlDeviceGetTotalEccErrors 0 0 1 = !15")
    values = [*cards.reader.read(cards.machine.node)]
    assert FIRST in {value.scope for value in values if value.metric == "acc_power"}
    known = {value.metric for value in values if value.scope == FIRST} & DETAILS.keys()
    assert known == {"acc_xid", "acc_xid_errors"}


class TestHanging:
    """A function that hangs in the driver."""

    HUNG = "nvmlDeviceGetRemappedRows 0 = hang"
    ROWS = frozenset(name for name in EXPECTED if "remapped" in name)

    def test_it_costs_its_metrics_only(self, machine: Machine) -> None:
        cards = Cards(machine, "30s")
        try:
            cards.nvidia(H100_DETAILS, self.HUNG)
            assert cards.details().keys() == EXPECTED.keys() - self.ROWS
            # The next sample doesn't wait for it, and other cards' calls are made.
            assert cards.details().keys() == EXPECTED.keys() - self.ROWS
            assert cards.reader.errors == []
            cards.nvidia(H100_DETAILS)
            deadline = time.monotonic() + 30
            while cards.details().keys() != EXPECTED.keys():
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            cards.reader.close()


def test_a_library_that_was_slow_to_load_has_details_soon(machine: Machine) -> None:
    cards = Cards(machine, "1s")
    try:
        cards.nvidia(H100_DETAILS, "nvmlDeviceGetCount_v2 = hang")
        assert cards.details() == {}
        assert cards.reader.errors == ["NVML: has not answered in time"]
        cards.nvidia(H100_DETAILS)
        deadline = time.monotonic() + 30
        while not cards.details():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        cards.reader.close()


def test_a_function_that_kills_the_library_is_not_called_again_soon(cards: Cards) -> None:
    cards.nvidia(H100_DETAILS)
    assert cards.details()
    cards.nvidia(H100_DETAILS, "nvmlDeviceGetRemappedRows 0 = crash")
    assert cards.details() == {}
    (error,) = cards.reader.errors
    assert error.startswith("NVML: killed by SIG")
    assert error.endswith("details are skipped for ten minutes")
    values = [*cards.reader.read(cards.machine.node)]
    assert FIRST in {value.scope for value in values if value.metric == "acc_power"}
    assert not DETAILS.keys() & {value.metric for value in values}
    assert cards.reader.errors == []


class TestXids:
    """Xid errors, which come as events."""

    def test_they_are_counted_from_the_first_reading_on(self, cards: Cards) -> None:
        cards.nvidia(H100_DETAILS, "nvmlEventSetWait_v2 = ")
        found = cards.details()
        assert found["acc_xid_errors"] == found["acc_xid"] == {FIRST: 0}
        cards.nvidia(H100_DETAILS, "nvmlEventSetWait_v2 = 0:79")
        cards.details()
        cards.nvidia(H100_DETAILS, "nvmlEventSetWait_v2 = 0:79 1:13 0:31")
        found = cards.details()
        # The second card delivers no events: that it had an error is not known.
        assert found["acc_xid_errors"] == {FIRST: 2}
        assert found["acc_xid"] == {FIRST: 31}

    def test_a_card_that_is_lost_keeps_those_that_say_why(self, cards: Cards) -> None:
        cards.nvidia(H100_DETAILS, "nvmlEventSetWait_v2 = ")
        cards.details()
        lost = ("nvmlDeviceGetMemoryInfo_v2 0 = !15", "nvmlDeviceGetMemoryInfo 0 = !15")
        cards.nvidia(H100_DETAILS, "nvmlEventSetWait_v2 = 0:79", *lost)
        for _ in range(2):
            values = [*cards.reader.read(cards.machine.node)]
            of_first = {value.metric: value.value for value in values if value.scope == FIRST}
            assert of_first == {"acc_failing": 1, "acc_xid": 79, "acc_xid_errors": 1}

    def test_a_card_off_the_bus_does_not_end_the_watch(self, cards: Cards) -> None:
        cards.nvidia(H100_DETAILS, "nvmlEventSetWait_v2 = 0:79")
        assert cards.details()["acc_xid"] == {FIRST: 79}
        cards.nvidia(H100_DETAILS, "nvmlEventSetWait_v2 = !15")
        cards.details()
        cards.nvidia(H100_DETAILS, "nvmlEventSetWait_v2 = 0:79 0:48")
        found = cards.details()
        assert found["acc_xid_errors"] == {FIRST: 2}
        assert found["acc_xid"] == {FIRST: 48}


def test_amds_have_what_their_library_offers(cards: Cards) -> None:
    cards.machine.cards("amdgpu", AMD_ADDRESSES)
    cards.machine.libraries.play(AMD, AMD_DETAILS)
    found = {
        metric: scopes[AMD_FIRST]
        for metric, scopes in cards.details().items()
        if AMD_FIRST in scopes
    }
    assert found == {
        "acc_ecc_corrected_volatile": 8,
        "acc_ecc_uncorrected_volatile": 1,
        "acc_retired_pages": 2,
        "acc_retired_pages_pending": 1,
        "acc_throttle_prochot": 0,
        "acc_throttle_power_cap": 1,
        "acc_throttle_hw_thermal": 1,
        "acc_throttle_vr_thermal": 0,
        # 255 and 65535 are "not told": acc_throttle_mem_thermal and acc_media_utilization.
        "acc_mem_utilization": 33,
        "acc_fan": 20,
        "acc_energy": pytest.approx(30.6),
        "acc_power_average": 30600,
        "acc_pcie_replays": 9,
        "acc_xgmi_tx": 202,
        "acc_xgmi_rx": 101,
        "acc_max_clock": 1700e6,
        "acc_max_mem_clock": 1600e6,
        "acc_video_clock": 700e6,
        "acc_max_video_clock": 1100e6,
    }
    assert cards.reader.errors == []


def test_an_amd_card_that_tells_nothing_has_no_details(cards: Cards) -> None:
    cards.machine.cards("amdgpu", AMD_ADDRESSES)
    cards.machine.libraries.play(AMD, AMD_DETAILS)
    second = AMD_FIRST._replace(type_id="00000000:C9:00.0")
    assert {metric for metric, scopes in cards.details().items() if second in scopes} == {
        "acc_mem_utilization",
        "acc_media_utilization",
    }


def agent_of(preset: str, include: list[str]) -> MetricsAgent:
    settings = {
        "readers": ["accelerators"],
        "accelerators": {"time-limit": "30s"},
        "preset": preset,
        "include": include,
    }
    return MetricsAgent(
        convert(settings, MetricsSettings, "agents.metrics", place="x"), frozenset({"line"})
    )


def lines_of(agent: MetricsAgent, machine: Machine) -> dict[str, str]:
    """Take a sample and return the values by series, without cluster and host."""
    (message,) = encode(agent.sample(machine.node), "line", machine.node)
    lines = [line.split(" ") for line in message.body.decode().splitlines()]
    return {
        series.replace("cluster=test.org,hostname=c1-1,", ""): value.removeprefix("value=")
        for series, value, _ in lines
    }


def test_counters_are_rates_over_the_time_that_passed(cards: Cards) -> None:
    cards.nvidia(H100_DETAILS)
    agent = agent_of("base", ["acc_power_average", "acc_nvlink_tx", "acc_nvlink_link_tx"])
    try:
        cards.machine.node.still.sleep(agent.prepare(cards.machine.node))
        cards.nvidia(
            H100_DETAILS,
            "nvmlDeviceGetTotalEnergyConsumption 0 = 123956789",
            "nvmlDeviceGetFieldValues 0 138 4294967295 = 3:3145828",
            "nvmlDeviceGetFieldValues 0 138 1 = 3:2097162",
        )
        found = lines_of(agent, cards.machine)
    finally:
        agent.close()
    card = "type=accelerator,type-id=00000000:0E:00.0"
    link = "stype=nvlink,stype-id=1,type=accelerator,type-id=00000000:0E:00.0"
    assert float(found[f"acc_power_average,{card}"]) == pytest.approx(500)
    assert float(found[f"acc_nvlink_tx,{card}"]) == pytest.approx(102400)
    assert float(found[f"acc_nvlink_link_tx,{link}"]) == pytest.approx(10240)


def test_a_preset_has_the_collectors_names_and_units(cards: Cards) -> None:
    cards.nvidia(H100_DETAILS)
    agent = agent_of(
        "cc-metric-collector",
        [
            "acc_ecc_corrected", "acc_ecc_uncorrected", "acc_violation_thermal", "acc_energy",
            "acc_nvlink_crc_errors", "acc_nvlink_link_crc_errors", "acc_max_clock",
            "acc_remapped_rows_pending", "acc_encoder_utilization", "acc_power_limit",
        ],
    )  # fmt: skip
    try:
        cards.machine.node.still.sleep(agent.prepare(cards.machine.node))
        found = lines_of(agent, cards.machine)
    finally:
        agent.close()
    card = "type=accelerator,type-id=00000000:0E:00.0"
    link = "stype=nvlink,stype-id=0,type=accelerator,type-id=00000000:0E:00.0"
    expected = {
        f"nv_ecc_corrected_error,{card}": "12",
        f"nv_ecc_uncorrected_error,{card}": "3",
        f"nv_violation_thermal,{card}": "1.024897024",
        f"nv_energy_abs,{card}": "123456.789",
        f"nv_nvlink_crc_errors_sum,{card}": "31",
        f"nv_nvlink_crc_errors,{link}": "31",
        f"nv_max_sm_clock,{card}": "1980",
        f"nv_remapped_rows_pending,{card}": "1",
        f"nv_encoder_util,{card}": "7",
        f"nv_power_max_limit,{card}": "700",
        f"nv_util,{card}": "87",
        f"nv_fb_mem_used,{card}": "19980",
        f"nv_power_usage,{card}": "512",
        f"nv_temp,{card}": "61",
    }
    assert {series: float(value) for series, value in found.items() if "C1" not in series} == {
        series: pytest.approx(float(value)) for series, value in expected.items()
    }
    assert found[f"nv_violation_thermal,{card}"] == "1.024897024"


def test_the_configuration_of_the_cluster_has_the_details(cards: Cards) -> None:
    cards.nvidia(H100_DETAILS)
    include = ["acc_ecc_corrected", "acc_nvlink_link_tx", "acc_power_average", "acc_xgmi_tx"]
    agent = agent_of("clustercockpit", include)
    try:
        cluster = cluster_config(agent, cards.machine.node)
    finally:
        agent.close()
    metrics = {each["name"]: each for each in cluster["metricConfig"]}
    # No card of this machine has XGMI.
    assert metrics.keys() & {*include} == {*include[:3]}
    assert {metrics[name]["scope"] for name in include[:3]} == {"accelerator"}
    assert metrics["acc_power_average"]["unit"] == {"base": "W"}
    assert metrics["acc_nvlink_link_tx"]["unit"] == {"base": "B/s", "prefix": "M"}


def test_rates_are_counted_and_states_are_not(cards: Cards) -> None:
    cards.nvidia(H100_DETAILS)
    values = [*cards.reader.read(cards.machine.node)]
    counted = {value.metric for value in values if isinstance(value, Count)}
    assert counted == {
        name for name in EXPECTED if DETAILS[name].unit in {"B/s", "W"} and "pcie" not in name
    }


def test_the_scripted_nvml_has_the_bindings_layouts(gpu_libraries: Path) -> None:
    library = ctypes.CDLL(str(gpu_libraries / "libnvidia-ml.so.1"))
    field, event = NVML.c_nvmlFieldValue_t, NVML.c_nvmlEventData_t
    expected = [
        ctypes.sizeof(field), field.fieldId.offset, field.scopeId.offset,
        field.valueType.offset, field.nvmlReturn.offset, field.value.offset,
    ]  # fmt: skip
    assert [*(ctypes.c_size_t * 6).in_dll(library, "field_value_layout")] == expected
    expected = [
        ctypes.sizeof(event), event.device.offset, event.eventType.offset, event.eventData.offset,
    ]  # fmt: skip
    assert [*(ctypes.c_size_t * 4).in_dll(library, "event_layout")] == expected


def test_the_scripted_amd_smi_has_the_bindings_sizes(libraries: Libraries) -> None:
    program = (
        "import ctypes; from amdsmi import amdsmi_wrapper as smi\n"
        "for name in ('error_count', 'violation_status', 'retired_page_record', 'pcie_info',"
        " 'link_metrics'):\n"
        "    print(ctypes.sizeof(getattr(smi, f'amdsmi_{name}_t')))"
    )
    command = [sys.executable, "-c", program]
    sizes = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.split()
    library = ctypes.CDLL(str(libraries.directory / "libamd_smi.so"))
    assert [*(ctypes.c_size_t * 5).in_dll(library, "sizes")] == [int(size) for size in sizes]
