"""NVIDIA's cards, through the real binding nvidia-ml-py and a stand-in for its library."""

from __future__ import annotations

import pytest

from tests.support.gpu_machine import Machine
from tests.support.gpu_scenarios import A40, DRIVER, H100, MIG, NVIDIA, NVIDIA_ADDRESSES

FIRST = "GPU-11111111-2222-3333-4444-555555555555"
SECOND = "GPU-66666666-7777-8888-9999-aaaaaaaaaaaa"
NEW_AVERAGE = "nvmlDeviceGetProcessUtilization 0 = 1000:5000000:60 1000:6000000:30 1001:6000000:8"


@pytest.fixture
def nvidia(machine: Machine) -> Machine:
    machine.cards("nvidia", NVIDIA_ADDRESSES)
    machine.libraries.play(NVIDIA)
    for pid in (1000, 1001, 1002, 1003):
        machine.node.process(pid)
    return machine


def test_a_card_is_described(nvidia: Machine) -> None:
    first, second = nvidia.described()
    assert first == {
        "index": 0,
        "uuid": FIRST,
        "address": "00000000:0E:00.0",
        "manufacturer": "NVIDIA",
        "model": "NVIDIA H100 80GB HBM3",
        "architecture": "Hopper",
        "driver": "550.54.15",
        "firmware": "96.00.61.00.01",
        "memory": 80 * 1024 * 1024,
        "power_limit": 700,
        "max_power_limit": 710,
        "min_power_limit": 200,
        "max_ce_clock": 1980,
        "max_memory_clock": 2619,
    }
    assert second == {
        "index": 1,
        "uuid": SECOND,
        "address": "00000000:C1:00.0",
        "manufacturer": "NVIDIA",
        "model": "NVIDIA A40",
        "architecture": "Ampere",
        "driver": "550.54.15",
        "memory": 45 * 1024 * 1024,
    }


def test_a_card_has_a_state(nvidia: Machine) -> None:
    first, second = nvidia.gpus()
    assert first == {
        "index": 0,
        "uuid": FIRST,
        "compute_mode": "Exclusive_Process",
        "performance_state": 2,
        "memory": 20950548480 // 1024,
        "ce_util": 87,
        "memory_util": 24,
        "temperature": 61,
        "power": 512,
        "power_limit": 700,
        "ce_clock": 1755,
        "memory_clock": 2600,
    }
    assert second == {
        "index": 1,
        "uuid": SECOND,
        "fan": 104,
        "memory": 318382080 // 1024,
        "memory_util": 1,
        "temperature": -7,
    }


def test_an_older_driver_tells_degrees_without_a_sign(nvidia: Machine) -> None:
    nvidia.libraries.play(NVIDIA, "nvmlDeviceGetTemperature 0 0 = 4294967291")
    assert nvidia.gpus()[0]["temperature"] == -5


@pytest.mark.parametrize(
    ("function", "fields"),
    [
        ("nvmlDeviceGetName 0", {"model"}),
        ("nvmlDeviceGetArchitecture 0", {"architecture"}),
        ("nvmlDeviceGetVbiosVersion 0", {"firmware"}),
        ("nvmlSystemGetDriverVersion", {"driver"}),
        ("nvmlDeviceGetMemoryInfo_v2 0", {"memory"}),
        ("nvmlDeviceGetPowerManagementLimit 0", {"power_limit"}),
        ("nvmlDeviceGetPowerManagementLimitConstraints 0", {"max_power_limit", "min_power_limit"}),
        ("nvmlDeviceGetMaxClockInfo 0 1", {"max_ce_clock"}),
        ("nvmlDeviceGetMaxClockInfo 0 2", {"max_memory_clock"}),
    ],
)
def test_what_a_card_does_not_support_costs_its_field_of_the_description(
    nvidia: Machine, function: str, fields: set[str]
) -> None:
    whole = nvidia.described()[0]
    nvidia.libraries.play(NVIDIA, f"{function} = !3")
    described = nvidia.described()[0]
    assert described == {name: whole[name] for name in whole.keys() - fields}


STATES = {
    "nvmlDeviceGetComputeMode 0": {"compute_mode"},
    "nvmlDeviceGetPerformanceState 0": {"performance_state"},
    "nvmlDeviceGetMemoryInfo_v2 0": {"memory", "memory_util"},
    "nvmlDeviceGetUtilizationRates 0": {"ce_util"},
    "nvmlDeviceGetTemperature 0 0": {"temperature"},
    "nvmlDeviceGetPowerUsage 0": {"power"},
    "nvmlDeviceGetPowerManagementLimit 0": {"power_limit"},
    "nvmlDeviceGetClockInfo 0 1": {"ce_clock"},
    "nvmlDeviceGetClockInfo 0 2": {"memory_clock"},
}


@pytest.mark.parametrize("function", STATES)
def test_what_a_card_does_not_support_costs_its_field_of_the_sample(
    nvidia: Machine, function: str
) -> None:
    whole = nvidia.gpus()[0]
    nvidia.libraries.play(NVIDIA, f"{function} = !3")
    assert nvidia.gpus()[0] == {name: whole[name] for name in whole.keys() - STATES[function]}


def test_a_driver_that_knows_the_older_form_of_memory_only(nvidia: Machine) -> None:
    memory = "nvmlDeviceGetMemoryInfo 0 = 85899345920 64424509440 21474836480"
    nvidia.libraries.play(NVIDIA, "nvmlDeviceGetMemoryInfo_v2 0 = !25", memory)
    card = nvidia.gpus()[0]
    assert (card["memory"], card.get("failing")) == (20971520, None)


def test_a_failing_question_for_the_driver_costs_no_card(nvidia: Machine) -> None:
    whole = nvidia.described()
    nvidia.libraries.play(NVIDIA, "nvmlSystemGetDriverVersion = !15")
    assert nvidia.described() == [
        {name: card[name] for name in card.keys() - {"driver"}} for card in whole
    ]


def test_a_card_that_does_not_tell_its_utilization_is_known_as_such(nvidia: Machine) -> None:
    assert 0 not in nvidia.reading().without_utilization
    nvidia.libraries.play(NVIDIA, "nvmlDeviceGetUtilizationRates 0 = !3")
    assert 0 in nvidia.reading().without_utilization


@pytest.mark.parametrize("code", [2, 3, 4, 13])
def test_a_card_that_tells_next_to_nothing_is_a_card(nvidia: Machine, code: int) -> None:
    nvidia.libraries.play(NVIDIA, *(f"{function} = !{code}" for function in STATES))
    assert nvidia.gpus()[0] == {"index": 0, "uuid": FIRST}


def test_what_fails_for_once_is_asked_again(nvidia: Machine) -> None:
    whole = nvidia.gpus()
    busy = [f"{function} = !999" for function in STATES if "Memory" not in function]
    nvidia.libraries.play(NVIDIA, *busy)
    assert nvidia.gpus()[0].keys() == {"index", "uuid", "memory", "memory_util"}
    nvidia.libraries.play(NVIDIA)
    assert nvidia.gpus() == whole


def test_processes_compute_or_draw_or_use_mps(nvidia: Machine) -> None:
    card = {"index": 0, "uuid": FIRST}
    gigabyte = 1024 * 1024
    assert nvidia.processes() == {
        1000: [
            card | {"gpu_util": 60.0, "gpu_memory": 10 * gigabyte, "gpu_memory_util": 12.5},
            {"index": 1, "uuid": SECOND},
        ],
        1001: [card | {"gpu_util": 20.0, "gpu_memory": 5 * gigabyte, "gpu_memory_util": 6.2}],
        1002: [card | {"gpu_memory": 100 * 1024, "gpu_memory_util": 0.1}],
        # What says 4000 percent says nothing.
        1003: [card | {"gpu_memory": 1024}],
    }


def test_drivers_with_another_structure_of_processes(nvidia: Machine) -> None:
    nvidia.libraries.play(
        NVIDIA,
        "nvmlSystemGetDriverVersion = 535.54.03",
        "nvmlDeviceGetComputeRunningProcesses_v3 0 = 1000:10737418240 4294967295:1001",
        "nvmlDeviceGetComputeRunningProcesses_v2 0 = 1000:10737418240 1001:5368709120",
    )
    found = nvidia.processes()
    assert {pid: each[0]["gpu_memory"] for pid, each in found.items() if pid in {1000, 1001}} == {
        1000: 10485760, 1001: 5242880,
    }  # fmt: skip
    assert 4294967295 not in found


def test_utilisation_is_that_since_the_last_sample(nvidia: Machine) -> None:
    assert nvidia.processes()[1000][0]["gpu_util"] == 60.0
    idle = nvidia.processes()
    assert "gpu_util" not in idle[1000][0]
    nvidia.libraries.play(NVIDIA, NEW_AVERAGE)
    later = nvidia.processes()
    assert [later[pid][0].get("gpu_util") for pid in (1000, 1001, 1002)] == [30.0, 8.0, None]


def test_processes_come_and_go(nvidia: Machine) -> None:
    assert nvidia.processes().keys() == {1000, 1001, 1002, 1003}
    nvidia.node.end(1001)
    gone = nvidia.sample()["jobs"]
    assert 1001 not in {process["pid"] for job in gone for process in job["processes"]}
    nvidia.node.process(1004)
    nvidia.libraries.play(
        NVIDIA,
        "nvmlDeviceGetComputeRunningProcesses_v3 0 = 1004:1073741824",
        "nvmlDeviceGetGraphicsRunningProcesses_v3 0 = ",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3 0 = !3",
    )
    assert nvidia.processes().keys() == {1000, 1004}
    nvidia.libraries.play(
        NVIDIA, "nvmlDeviceGetComputeRunningProcesses_v3 0 = ", A40.replace("= 1000:", "= ")
    )
    assert nvidia.processes().keys() <= {1001, 1002, 1003}


def test_a_process_that_nobody_knows_holds_memory(nvidia: Machine) -> None:
    nvidia.libraries.play(NVIDIA, "nvmlDeviceGetComputeRunningProcesses_v3 0 = 999:1073741824")
    (stranger,) = [job for job in nvidia.sample()["jobs"] if job["job"] == 999]
    (process,) = stranger["processes"]
    assert stranger["user"] == "_user_unknown"
    assert stranger["epoch"]
    assert process["cmd"] == "_unknown_"
    assert process["gpus"][0]["gpu_memory"] == 1024 * 1024


def test_processes_that_are_left_out_are_no_strangers(nvidia: Machine) -> None:
    assert nvidia.sample(exclude_users=["ada"]).get("jobs", []) == []


def test_rolled_up_processes_add_up_by_card(nvidia: Machine) -> None:
    used = nvidia.processes(rollup=True, jobs_by_process_group=True)
    assert len(used) == 4
    for pid in (1000, 1001):
        nvidia.node.process(pid, group=77, ppid=76)
    nvidia.node.process(76, group=77, ppid=1, command="parent")
    nvidia.libraries.play(NVIDIA, NEW_AVERAGE)
    (rolled,) = [
        process
        for job in nvidia.sample(rollup=True, jobs_by_process_group=True)["jobs"]
        for process in job["processes"]
        if process.get("rolledup")
    ]
    assert rolled["gpus"] == [
        {
            "index": 0,
            "uuid": FIRST,
            "gpu_util": 38.0,
            "gpu_memory": 15 * 1024 * 1024,
            "gpu_memory_util": 18.7,
        },
        {"index": 1, "uuid": SECOND},
    ]


class TestInstances:
    """In MIG mode, a card's memory and processes are those of its instances."""

    @pytest.fixture
    def mig(self, nvidia: Machine) -> Machine:
        nvidia.libraries.play(NVIDIA, MIG)
        return nvidia

    def test_they_are_cards_behind_the_cards(self, mig: Machine) -> None:
        gigabyte = 1024 * 1024
        cards = mig.described()
        assert [(card["index"], card["uuid"][:6], card["memory"]) for card in cards] == [
            (0, "GPU-11", 30 * gigabyte),
            (2, "MIG-aa", 40 * gigabyte),
            (3, "MIG-aa", 10 * gigabyte),
            (1, "GPU-66", 45 * gigabyte),
        ]
        assert cards[1]["model"] == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
        assert {card["address"] for card in cards[:3]} == {"00000000:0E:00.0"}

    def test_no_use_counts_twice(self, mig: Machine) -> None:
        states = {state["index"]: state for state in mig.gpus()}
        whole = 20950548480 // 1024
        assert sum(states[index]["memory"] for index in (0, 2, 3)) == whole
        assert states[0]["power"] == 512
        assert states[2] == {
            "index": 2,
            "uuid": "MIG-aaaaaaaa-0000-0000-0000-000000000001",
            "memory": 10 * 1024 * 1024,
            "memory_util": 25,
        }
        used = mig.processes()
        assert [use["index"] for use in used[1000]] == [2, 1]
        assert [use["index"] for use in used[1001]] == [3]
        assert 1002 not in used

    def test_an_instance_that_goes_while_it_is_read_costs_itself(self, mig: Machine) -> None:
        mig.libraries.play(NVIDIA, MIG, "nvmlDeviceGetMemoryInfo_v2 0/1 = !6")
        states = {state["index"]: state for state in mig.gpus()}
        assert sorted(states) == [0, 1, 2]
        assert states[2]["uuid"] == "MIG-aaaaaaaa-0000-0000-0000-000000000004"
        assert not any("failing" in state for state in states.values())

    def test_instances_may_be_made_anew(self, mig: Machine) -> None:
        assert len(mig.gpus()) == 4
        mig.libraries.play(DRIVER, H100, A40)
        assert len(mig.gpus()) == 2
        mig.libraries.play(NVIDIA, MIG)
        # What wasn't supported is asked for again after a while.
        assert 4 in [len(mig.gpus()) for _ in range(100)]


class TestFailing:
    """A card that fell off the bus, in whatever way that shows."""

    LOST = "\n".join(
        f"{line.split(' = ')[0]} = !15"
        for line in A40.strip().splitlines()
        if "PciInfo" not in line
    )

    @pytest.mark.parametrize(
        "lost",
        [
            LOST,
            LOST + "\nnvmlDeviceGetPciInfo_v3 1 = !15",
            "nvmlDeviceGetHandleByIndex_v2 1 = !15",
            "nvmlDeviceGetMemoryInfo 1 = !999",
            "nvmlDeviceGetUUID 1 = !16",
        ],
    )
    def test_it_fails_with_its_last_uuid(self, nvidia: Machine, lost: str) -> None:
        healthy = nvidia.gpus()
        nvidia.libraries.play(NVIDIA, lost)
        states = nvidia.gpus()
        assert states == [healthy[0], {"index": 1, "uuid": SECOND, "failing": 1}]
        assert [card["index"] for card in nvidia.described()] == [0]
        nvidia.libraries.play(NVIDIA)
        assert nvidia.gpus() == healthy

    def test_it_is_gone_for_library_and_kernel(self, nvidia: Machine) -> None:
        assert len(nvidia.gpus()) == 2
        nvidia.libraries.play(NVIDIA, "nvmlDeviceGetCount_v2 = 1")
        nvidia.cards("nvidia", NVIDIA_ADDRESSES[:1])
        assert nvidia.gpus()[1] == {"index": 1, "uuid": SECOND, "failing": 1}
        nvidia.cards("nvidia", [])
        assert [state["failing"] for state in nvidia.gpus()] == [1, 1]

    def test_its_index_may_go_to_another_card(self, nvidia: Machine) -> None:
        healthy = nvidia.gpus()
        # The library was started again: it knows the second card alone.
        nvidia.libraries.play(NVIDIA.replace(" 0 = ", " 2 = ").replace(" 1 = ", " 0 = ").replace(
            " 1 0 = ", " 0 0 = "), "nvmlDeviceGetCount_v2 = 1",
        )  # fmt: skip
        nvidia.cards("nvidia", NVIDIA_ADDRESSES[1:])
        second, lost = nvidia.gpus()
        assert (second["index"], second["uuid"]) == (0, SECOND)
        assert lost == {"index": 1, "uuid": healthy[0]["uuid"], "failing": 1}

    def test_one_that_was_never_seen_well_has_a_uuid_too(self, nvidia: Machine) -> None:
        nvidia.libraries.play(NVIDIA, "nvmlDeviceGetHandleByIndex_v2 1 = !15")
        failing = nvidia.gpus()[1]
        assert failing["failing"] == 1
        assert failing["uuid"] not in {"", FIRST, SECOND}
        assert nvidia.gpus()[1] == failing
        nvidia.node.write("sys/kernel/random/boot_id", "29ec4067-4a8e-4b5c-8b39-3ad3ba1f7ffb\n")
        other = Machine(nvidia.node, nvidia.libraries)
        assert other.gpus()[1]["uuid"] != failing["uuid"]
        other.close()
