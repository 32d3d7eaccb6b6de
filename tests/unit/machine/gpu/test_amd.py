"""amd: dies and partitions with one power meter, and the use of a card by processes."""

from __future__ import annotations

from typing import Any

import pytest

from ccagent.machine.gpu.amd import AmdBoard, find_modules, share_utilization


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
        ([], 0, []),
    ],
)
def test_processes_share_a_card_by_compute_units(
    units: list[Any], whole: int, expected: list[float] | None
) -> None:
    assert share_utilization([{"cu_occupancy": unit} for unit in units], whole) == expected
