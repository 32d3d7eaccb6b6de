"""AMD's cards, through the real binding amdsmi and a stand-in for its library."""

from __future__ import annotations

import pytest

from tests.support.gpu_machine import Machine
from tests.support.gpu_scenarios import AMD, AMD_ADDRESSES, NVIDIA, NVIDIA_ADDRESSES

FIRST = "73ff740f-0000-1000-80c0-2e1be2a6b0c1"


@pytest.fixture
def amd(machine: Machine) -> Machine:
    machine.cards("amdgpu", AMD_ADDRESSES)
    machine.libraries.play(AMD)
    for pid in (1000, 2000, 2001):
        machine.node.process(pid)
    return machine


def test_a_card_is_described(amd: Machine) -> None:
    first, second = amd.described()
    assert first == {
        "index": 0,
        "uuid": FIRST,
        "address": "00000000:C5:00.0",
        "manufacturer": "AMD",
        "model": "AMD Instinct MI250X",
        "architecture": "gfx90a",
        "driver": "6.10.5",
        "firmware": "113-D65201-064",
        "memory": 68702699520 // 1024,
        "power_limit": 500,
        "max_power_limit": 560,
        "max_ce_clock": 1700,
        "max_memory_clock": 1600,
    }
    # Its uuid is made up; its power limits come in watts.
    assert second["uuid"] == amd.gpus()[1]["uuid"]
    del second["uuid"]
    assert second == {
        "index": 1,
        "address": "00000000:C9:00.0",
        "manufacturer": "AMD",
        "model": "Radeon Pro W6800",
        "memory": 32 * 1024 * 1024,
        "power_limit": 250,
        "max_power_limit": 270,
        "min_power_limit": 100,
    }


def test_a_card_has_a_state(amd: Machine) -> None:
    first, second = amd.gpus()
    assert first == {
        "index": 0,
        "uuid": FIRST,
        "fan": 20,
        "compute_mode": "SPX",
        "performance_state": 5,
        "memory": 17175674880 // 1024,
        "ce_util": 90,
        "memory_util": 25,
        "temperature": 55,
        "power": 312,
        "power_limit": 500,
        "ce_clock": 1650,
        "memory_clock": 1600,
    }
    del second["uuid"]
    assert second == {
        "index": 1,
        "memory": 1024 * 1024,
        "ce_util": 10,
        "memory_util": 3,
        "temperature": -3,
        "power_limit": 250,
    }


FIELDS = {
    "amdsmi_get_gpu_fan_speed 0": {"fan"},
    "amdsmi_get_gpu_fan_speed_max 0": {"fan"},
    "amdsmi_get_gpu_compute_partition 0": {"compute_mode"},
    "amdsmi_get_gpu_perf_level 0": {"performance_state"},
    "amdsmi_get_gpu_memory_usage 0": {"memory", "memory_util"},
    "amdsmi_get_gpu_memory_total 0": {"memory_util"},
    "amdsmi_get_gpu_activity 0": {"ce_util"},
    "amdsmi_get_temp_metric 0 1": {"temperature"},
    "amdsmi_get_power_info 0": {"power"},
    "amdsmi_get_power_cap_info 0": {"power_limit"},
    "amdsmi_get_clock_info 0 0": {"ce_clock"},
    "amdsmi_get_clock_info 0 4": {"memory_clock"},
}


def test_what_a_card_does_not_tell_costs_its_field(amd: Machine) -> None:
    whole = amd.gpus()[0]
    for code in (2, 3, 9, 10, 31, 43):
        for function, fields in FIELDS.items():
            amd.libraries.play(AMD, f"{function} = !{code}")
            state = amd.gpus()[0]
            assert state == {name: whole[name] for name in whole.keys() - fields}, (code, function)


def test_a_card_that_does_not_tell_its_utilization_is_known_as_such(amd: Machine) -> None:
    assert 0 not in amd.reading().without_utilization
    amd.libraries.play(AMD, "amdsmi_get_gpu_activity 0 = !2")
    assert 0 in amd.reading().without_utilization


def test_utilisation_is_divided_evenly(amd: Machine) -> None:
    used = amd.processes()
    assert [used[pid][0] for pid in (1000, 2000, 2001)] == [
        {
            "index": 0,
            "uuid": FIRST,
            "gpu_util": 30.0,
            "gpu_memory": 8 * 1024 * 1024,
            "gpu_memory_util": 12.5,
        },
        {
            "index": 0,
            "uuid": FIRST,
            "gpu_util": 30.0,
            "gpu_memory": 4 * 1024 * 1024,
            "gpu_memory_util": 6.3,
        },
        {"index": 0, "uuid": FIRST, "gpu_util": 30.0, "gpu_memory": 1},
    ]


def test_memory_is_divided_evenly_where_only_the_card_tells(amd: Machine) -> None:
    used = amd.processes()
    for pid in (1000, 2000):
        use = used[pid][1]
        assert (use["gpu_util"], use["gpu_memory"]) == (5.0, 512 * 1024)


@pytest.mark.parametrize("code", [6, 12, 34])
def test_a_lost_card_fails_with_its_last_uuid(amd: Machine, code: int) -> None:
    healthy = amd.gpus()
    amd.libraries.play(AMD, f"amdsmi_get_gpu_memory_total 0 = !{code}")
    assert amd.gpus() == [{"index": 0, "uuid": FIRST, "failing": 1}, healthy[1]]


def test_cards_of_two_makers_are_numbered_in_turn(amd: Machine) -> None:
    amd.cards("nvidia", NVIDIA_ADDRESSES)
    amd.libraries.play(NVIDIA, AMD)
    assert [(card["index"], card["manufacturer"]) for card in amd.described()] == [
        (0, "NVIDIA"), (1, "NVIDIA"), (2, "AMD"), (3, "AMD"),
    ]  # fmt: skip
    assert [state["index"] for state in amd.gpus()] == [0, 1, 2, 3]
    assert [use["index"] for use in amd.processes()[1000]] == [0, 1, 2, 3]
    only_amd = amd.gpus(gpu_vendors=("amd",))
    assert [state["uuid"] for state in only_amd][:1] == [FIRST]


def test_what_one_library_breaks_the_other_does_not_suffer(amd: Machine) -> None:
    amd.cards("nvidia", NVIDIA_ADDRESSES)
    amd.libraries.play(AMD, "nvmlDeviceGetCount_v2 = crash")
    sample = amd.sample()
    assert [state["index"] for state in sample["system"]["gpus"]] == [2, 3]
    assert [error["detail"] for error in sample["errors"]] == ["NVML: killed by SIGSEGV"]
