"""Libraries of GPUs that are missing, wrong, hanging or dying cost the GPU fields alone."""

from __future__ import annotations

import shutil
import time
from typing import Any

import pytest

from ccagent.config.duration import Duration
from ccagent.machine import helper
from ccagent.machine.helper import Helper
from tests.support.gpu_libraries import Libraries
from tests.support.gpu_machine import Machine
from tests.support.gpu_scenarios import AMD, AMD_ADDRESSES, NVIDIA, NVIDIA_ADDRESSES
from tests.support.running import until

SHORT = {"gpu_time_limit": Duration("300ms")}


def errors(sample: dict[str, Any]) -> list[str]:
    return [error["detail"] for error in sample.get("errors", [])]


@pytest.fixture
def nvidia(machine: Machine) -> Machine:
    machine.cards("nvidia", NVIDIA_ADDRESSES)
    machine.libraries.play(NVIDIA)
    machine.node.process(1000)
    return machine


def test_without_cards_nothing_is_started(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Helper, "start", None)
    monkeypatch.setattr(Helper, "ask", None)
    machine.cards("nvidia", [])
    assert "gpus" not in machine.sample()["system"]
    assert machine.described() == []


def test_cards_that_are_not_asked_for_are_not_there(nvidia: Machine) -> None:
    assert nvidia.gpus(gpu_vendors=()) == []


def test_a_driver_without_a_card_has_none(machine: Machine) -> None:
    machine.cards("nvidia", ["bind", "new_id", "module", "unbind"])
    assert "gpus" not in machine.sample()["system"]


def test_the_library_is_missing(nvidia: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH")
    for _ in range(2):
        sample = nvidia.sample()
        assert "gpus" not in sample["system"]
        assert len(sample["jobs"]) == 1
        assert errors(sample) == ["NVML: NVML Shared Library Not Found"]


def test_the_library_of_amd_is_missing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.cards("amdgpu", AMD_ADDRESSES)
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert errors(machine.sample()) == ["AMD SMI: libamd_smi.so is missing"]


def test_the_library_is_of_another_version(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    # AMD's bindings name functions that another version of the library doesn't have.
    shutil.copy(machine.libraries.directory / "libnvidia-ml.so.1", tmp_path / "libamd_smi.so")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    machine.cards("amdgpu", AMD_ADDRESSES)
    (error,) = errors(machine.sample())
    assert error.startswith("AMD SMI: libamd_smi.so is of another version than the package amdsmi")


@pytest.mark.parametrize("code", [9, 18, 999])
def test_the_library_can_not_be_initialised(nvidia: Machine, code: int) -> None:
    nvidia.libraries.play(NVIDIA, f"nvmlInitWithFlags = !{code}")
    (error,) = errors(nvidia.sample())
    assert error.startswith("NVML: ")
    assert nvidia.described() == []


def test_the_driver_goes_away(nvidia: Machine) -> None:
    assert len(nvidia.gpus()) == 2
    nvidia.libraries.play(NVIDIA, "nvmlDeviceGetUUID 0 = !18")
    (error,) = errors(nvidia.sample())
    assert error == "NVML: RM has detected an NVML/RM version mismatch."
    # It is opened anew, but not at once.
    nvidia.libraries.play(NVIDIA)
    assert errors(nvidia.sample()) == [error]


def test_it_dies_and_comes_back(nvidia: Machine) -> None:
    healthy = nvidia.gpus()
    nvidia.libraries.play(NVIDIA, "nvmlDeviceGetFanSpeed 1 = crash")
    for _ in range(2):
        sample = nvidia.sample()
        assert "gpus" not in sample["system"]
        assert len(sample["jobs"]) == 1
        assert errors(sample) == ["NVML: killed by SIGSEGV"]
    (error,) = errors(nvidia.sample())
    assert error.startswith("NVML: failed, is tried again in ")
    assert len(healthy) == 2


def test_it_hangs_and_comes_back(nvidia: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**SHORT, "time_limit": Duration("2s")}
    nvidia.agent(**settings).prepare(nvidia.node)
    until(lambda: len(nvidia.gpus(**settings)) == 2)
    nvidia.libraries.play(NVIDIA, "nvmlDeviceGetPowerUsage 0 = hang")
    begin = time.monotonic()
    sample = nvidia.sample(**settings)
    assert errors(sample) == ["NVML: has not answered in time"]
    assert len(sample["jobs"]) == 1
    # Only the first sample waits for it.
    waited = time.monotonic() - begin
    assert errors(nvidia.sample(**settings)) == ["NVML: has not answered since an earlier sample"]
    assert time.monotonic() - begin - waited < 1
    time.sleep(2.0)
    assert errors(nvidia.sample(**settings)) == ["NVML: no answer after 2 s"]
    nvidia.libraries.play(NVIDIA)
    until(lambda: nvidia.gpus(**settings))


def test_a_late_answer_is_not_taken_for_a_new_one(nvidia: Machine) -> None:
    nvidia.agent(**SHORT).prepare(nvidia.node)
    until(lambda: nvidia.gpus(**SHORT))
    nvidia.libraries.play(NVIDIA, "nvmlDeviceGetUUID 0 = hang")
    assert nvidia.gpus(**SHORT) == []
    nvidia.libraries.play(NVIDIA, "nvmlDeviceGetPowerUsage 0 = 1000")
    time.sleep(0.3)
    nvidia.libraries.play(NVIDIA, "nvmlDeviceGetPowerUsage 0 = 99000")
    while not (found := nvidia.gpus(**SHORT)):
        time.sleep(0.05)
    assert found[0]["power"] == 99


def test_whatever_the_makers_say_is_a_valid_envelope(nvidia: Machine) -> None:
    nvidia.cards("amdgpu", AMD_ADDRESSES)
    bent = [
        f"{line.split(' = ')[0]} = {value}"
        for line in (NVIDIA + AMD).splitlines()
        for value in ("4294967295", "x\udcff{}", "-1")
        if " = " in line and "Count" not in line and "handles" not in line
    ]
    for begin in range(3):
        nvidia.libraries.play(NVIDIA, AMD, *bent[begin::3])
        sample = nvidia.sample()
        assert (len(sample["system"]["gpus"]), errors(sample)) == (4, [])
        assert len(nvidia.described()) == 4


def test_no_process_stays_behind(libraries: Libraries) -> None:
    libraries.play(NVIDIA)
    running = Helper("NVML", "ccagent.machine.gpu.gpus:main", ("x:y",), time_limit=5.0)
    running.start()
    process = running._running
    assert process is not None
    running.close()
    assert process.process.returncode is not None


def test_a_hanging_process_is_killed_at_the_end(nvidia: Machine) -> None:
    nvidia.libraries.play(NVIDIA, "nvmlDeviceGetPowerUsage 0 = hang")
    agent = nvidia.agent(**SHORT)
    nvidia.sample(**SHORT)
    begin = time.monotonic()
    agent.close()
    assert time.monotonic() - begin < helper._GRACE
