"""amd: dies and partitions with one power meter, and the use of a card by processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ccagent.machine.background import LimitedCalls
from ccagent.machine.gpu.amd import Amd, AmdBoard, find_modules, share_utilization


def die(bus: str, serial: str = "", device: str = "0x7408") -> AmdBoard:
    return AmdBoard(f"00000000:{bus}:00.0", device, serial)


def test_dies_of_a_module_are_neighbours_on_the_bus() -> None:
    found = find_modules([die("C6"), die("C1"), die("CE"), die("C9")])
    assert found == ["00000000:C1:00", "00000000:C1:00", "00000000:C9:00", "00000000:C9:00"]


def test_dies_of_a_module_have_the_serial_number_of_their_board() -> None:
    assert find_modules([die("C1", "A"), die("C6", "B"), die("C9", "A")]) == ["A", "B", "A"]


def test_a_serial_number_of_all_dies_is_none_of_a_module() -> None:
    found = find_modules([die(bus, "unset") for bus in ("C1", "C6", "C9", "CE")])
    assert found[0] == found[1] != found[2] == found[3]


def test_without_a_die_the_modules_are_unknown() -> None:
    assert find_modules([die("C1"), None, die("C9"), die("CE")]) == ["?", "", "?", "?"]


def test_other_cards_are_modules_of_their_partitions() -> None:
    boards = [AmdBoard(f"00000000:0C:00.{part}", "0x74a1", "S") for part in range(2)]
    assert find_modules([*boards, die("C1", "S", "0x740f")]) == [
        "00000000:0C:00", "00000000:0C:00", "00000000:C1:00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("units", "whole", "expected"),
    [
        ([90, 30], 80, [60.0, 20.0]),
        ([90, 0], 80, [80.0, 0.0]),
        ([0, 0], 0, [0.0, 0.0]),
        ([0, 0], 80, None),  # no unit was occupied at the moment
        ([90, "N/A"], 80, None),
        ([None], 80, None),  # an older release
        ([0xFFFFFFFF, 30], 80, None),
        ([], 0, []),
    ],
)
def test_processes_share_a_card_by_compute_units(
    units: list[Any], whole: int, expected: list[float] | None
) -> None:
    assert share_utilization([{"cu_occupancy": unit} for unit in units], whole) == expected


class Partitions(dict[object, dict[str, Any]]):
    """Answers by handle."""


class EarlyBindings:
    """Bindings of release 6.0: other names of fields, handles of processes, numbers for "N/A"."""

    AmdSmiException = AmdSmiLibraryException = ArithmeticError
    AmdSmiMemoryType = AmdSmiTemperatureMetric = SimpleNamespace(VRAM=0, CURRENT=0)
    AmdSmiTemperatureType = SimpleNamespace(EDGE=0)
    AmdSmiClkType = SimpleNamespace(GFX=0, MEM=1)
    amdsmi_wrapper = SimpleNamespace()
    ANSWERS: dict[str, Any] = {
        "processor_handles": ["card"],
        "gpu_device_bdf": "0000:c1:00.0",
        "gpu_device_uuid": "u",
        "gpu_asic_info": {"device_id": 0x7408},
        "gpu_memory_total": 64 << 30,
        "gpu_memory_usage": 1 << 30,
        "gpu_activity": {"gfx_activity": 0xFFFF, "umc_activity": 7, "mm_activity": 0xFFFF},
        "power_info": {"current_socket_power": 0xFFFF, "average_socket_power": 312},
        "clock_info": {"cur_clk": 1650, "max_clk": 0xFFFFFFFF},
        "energy_count": {"power": 2_000_000, "counter_resolution": 15.5, "timestamp": 1},
        "gpu_process_list": [41],
        "gpu_process_info": {"pid": 41, "mem": 0, "memory_usage": {"vram_mem": 1 << 29}},
        "temp_metric": 61,
        "link_metrics": {
            "num_links": 2,
            "links": [{"read": 5, "write": 2**64 - 1}, {"read": 2**64 - 1, "write": 2**64 - 1}],
        },
    }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        try:
            answer = self.ANSWERS[name.removeprefix("amdsmi_get_")]
        except KeyError:
            raise AttributeError(name) from None

        def call(*arguments: object) -> Any:
            return answer[arguments[0]] if isinstance(answer, Partitions) else answer

        return call


def test_bindings_of_an_earlier_release() -> None:
    vendor, calls = Amd(), LimitedCalls()
    vendor._smi = EarlyBindings()
    reading = vendor.read()
    (card,) = reading.cards
    assert not card.has_utilization
    assert (card.state.power, card.state.ce_clock, card.state.ce_util) == (312, 1650, 0)
    assert card.card.module == "?"  # one die of two
    assert [(process.pid, process.memory) for process in reading.processes] == [(41, 1 << 19)]
    wanted = frozenset({
        "energy", "mem_utilization", "media_utilization", "max_clock", "xgmi_rx", "xgmi_tx",
    })  # fmt: skip
    details = calls.run(lambda: vendor.read_details(wanted, calls), 60)
    assert details is not None
    assert {each.name: each.value for each in details[0].details} == {
        "energy": 31_000, "mem_utilization": 7, "xgmi_rx": 5,
    }  # fmt: skip


def test_partitions_of_a_card_have_different_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"a": 0, "b": 1, "c": 7, "d": "N/A"}
    kfd = Partitions({each: {"current_partition_id": part} for each, part in numbers.items()})
    monkeypatch.setitem(EarlyBindings.ANSWERS, "processor_handles", [*numbers])
    monkeypatch.setitem(EarlyBindings.ANSWERS, "gpu_kfd_info", kfd)
    vendor = Amd()
    vendor._smi = EarlyBindings()
    addresses = [each.card.address for each in vendor.read().cards]
    assert addresses == [f"00000000:C1:00.{part}" for part in (0, 1, 7, 0)]
