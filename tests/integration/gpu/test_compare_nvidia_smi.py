"""The comparison with nvidia-smi finds what differs; it needs no card for that."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.support.compare_nvidia_smi import compare, parse_table
from tests.support.gpu_machine import Machine
from tests.support.gpu_scenarios import NVIDIA, NVIDIA_ADDRESSES

# In the form of nvidia-smi 550 with --format=csv,nounits.
GPUS = """\
uuid, pci.bus_id, name, driver_version, vbios_version, memory.total [MiB], power.limit [W], \
power.min_limit [W], power.max_limit [W], clocks.max.sm [MHz], clocks.max.memory [MHz], \
fan.speed [%], compute_mode, pstate, memory.used [MiB], utilization.gpu [%], temperature.gpu, \
power.draw [W], clocks.current.sm [MHz], clocks.current.memory [MHz]
GPU-11111111-2222-3333-4444-555555555555, 00000000:0E:00.0, NVIDIA H100 80GB HBM3, 550.54.15, \
96.00.61.00.01, 81920, 700.00, 200.00, 710.00, 1980, 2619, [N/A], Exclusive_Process, P0, 19980, \
87, 61, 512.49, 1755, 2600
GPU-66666666-7777-8888-9999-aaaaaaaaaaaa, 00000000:C1:00.0, NVIDIA A40, 550.54.15, [N/A], 46080, \
[N/A], [N/A], [N/A], [N/A], [N/A], 104, [N/A], [N/A], 303, 0, -7, [N/A], [N/A], [N/A]
"""
PROCESSES = """\
gpu_uuid, pid, used_gpu_memory [MiB]
GPU-11111111-2222-3333-4444-555555555555, 1000, 10240
GPU-66666666-7777-8888-9999-aaaaaaaaaaaa, 1000, [N/A]
"""


@pytest.fixture
def told(machine: Machine) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What ccagent says of these cards."""
    machine.cards("nvidia", NVIDIA_ADDRESSES)
    machine.libraries.play(NVIDIA)
    machine.node.process(1000)
    return machine.sample(), machine.described()


def different(told: tuple[dict[str, Any], list[dict[str, Any]]], gpus: str, used: str) -> list[str]:
    return [each.what for each in compare(*told, gpus, used) if not each.agrees]


def test_equal_answers_agree(told: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    assert different(told, GPUS, PROCESSES) == []
    assert len(compare(*told, GPUS, PROCESSES)) == 2 + 2 * 22 + 2 * 2


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H200", ["card 0 model"]),
        ("81920", "141000", ["card 0 memory"]),
        ("P0", "P8", ["card 0 performance_state"]),
        ("Exclusive_Process", "Default", ["card 0 compute_mode"]),
        (", -7,", ", 7,", ["card 1 temperature"]),
        ("[N/A], Exclusive_Process", "50, Exclusive_Process", ["card 0 fan"]),
        (", 104, ", ", [N/A], ", ["card 1 fan"]),
    ],
)
def test_what_differs_is_found(
    told: tuple[dict[str, Any], list[dict[str, Any]]], old: str, new: str, what: list[str]
) -> None:
    assert old in GPUS
    assert different(told, GPUS.replace(old, new), PROCESSES) == what


def test_a_process_that_is_missing_is_found(
    told: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    used = PROCESSES.replace("1000, 10240", "1234, 10240")
    assert different(told, GPUS, used) == ["process 1234 gpu_memory", "process 1234 listed"]


def test_a_table_has_names_without_units() -> None:
    assert parse_table(PROCESSES)[0]["used_gpu_memory"] == "10240"
    assert parse_table("") == []


def test_a_recording_answers_as_the_cards_did(machine: Machine) -> None:
    machine.cards("nvidia", NVIDIA_ADDRESSES)
    machine.libraries.play(NVIDIA)
    before = machine.gpus(), machine.processes(gpu_vendors=("nvidia",)), machine.described()
    command = [sys.executable, "-m", "tests.support.record_nvml"]
    recorded = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    again = Machine(machine.node, machine.libraries)
    machine.libraries.play(recorded)
    after = again.gpus(), again.processes(gpu_vendors=("nvidia",)), again.described()
    again.close()
    assert after == before
