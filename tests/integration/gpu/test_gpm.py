"""Activity of cards and MIG instances, through the maker's binding and a library with GPM."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pynvml
import pytest

from ccagent.agents.metrics.readers.accelerators import AcceleratorsReader, AcceleratorsSettings
from ccagent.agents.metrics.readers.base import Scope
from ccagent.config.duration import Duration
from ccagent.exporter.gpu_metrics import DcgmCollector, GpuCollector
from tests.support.gpu_libraries import Libraries
from tests.support.gpu_machine import Machine
from tests.support.gpu_scenarios import GPM, GPM_INSTANCES, MIG, NVIDIA, NVIDIA_ADDRESSES
from tests.support.running import until
from tests.support.scraped import collected, make

NVML: Any = pynvml
FIRST = Scope("accelerator", "00000000:0E:00.0")
LARGE = FIRST._replace(stype="mig", stype_id="MIG-aaaaaaaa-0000-0000-0000-000000000001")
SMALL = FIRST._replace(stype="mig", stype_id="MIG-aaaaaaaa-0000-0000-0000-000000000004")
OF_CARD = {
    "acc_graphics_active": 97.5,
    "acc_sm_active": 41.25,
    "acc_sm_occupancy": 12.5,
    "acc_tensor_active": 30,
    "acc_dram_active": 22.75,
    "acc_gpm_pcie_tx": 100 << 20,
    "acc_gpm_nvlink_rx": 2.5 * (1 << 20),
}


@pytest.fixture
def machine(machine: Machine) -> Machine:
    machine.cards("nvidia", NVIDIA_ADDRESSES)
    machine.libraries.play(NVIDIA, GPM)
    return machine


@pytest.fixture
def reader() -> Iterator[AcceleratorsReader]:
    reader = AcceleratorsReader(AcceleratorsSettings(time_limit=Duration("30s")))
    yield reader
    reader.close()


def read(reader: AcceleratorsReader, machine: Machine) -> dict[str, dict[Scope, float]]:
    """Return the values of the second reading that has any activity."""
    found: dict[str, dict[Scope, float]] = {}

    def has_activity() -> bool:
        found.clear()
        for metric, value, scope, *_ in reader.read(machine.node):
            found.setdefault(metric, {})[scope] = value
        return "acc_sm_active" in found or "acc_instance_sm_active" in found

    until(has_activity)
    assert reader.errors == []
    return found


def test_seven_metrics_of_a_card(machine: Machine, reader: AcceleratorsReader) -> None:
    first = {value.metric for value in reader.read(machine.node)}
    assert not OF_CARD.keys() & first, "a first sample has nothing to compare with"
    found = read(reader, machine)
    assert {name: found[name] for name in OF_CARD} == {
        name: {FIRST: value} for name, value in OF_CARD.items()
    }


def test_two_slices_have_their_own_activity(machine: Machine, reader: AcceleratorsReader) -> None:
    machine.libraries.play(NVIDIA, MIG, GPM, GPM_INSTANCES)
    found = read(reader, machine)
    assert found["acc_instance_sm_active"] == {LARGE: 60.5, SMALL: 0}
    assert found["acc_instance_tensor_active"] == {LARGE: 10}
    assert found["acc_sm_active"] == {FIRST: 41.25}


def test_compute_instances_of_one_slice_are_unknown(
    machine: Machine, reader: AcceleratorsReader
) -> None:
    """GPM counts by GPU instance: of two compute instances on it none can be told apart."""
    machine.libraries.play(NVIDIA, MIG, GPM, GPM_INSTANCES, "nvmlDeviceGetGpuInstanceId 0/4 = 1")
    assert "acc_instance_sm_active" not in read(reader, machine)


def test_instances_need_a_newer_driver(machine: Machine, reader: AcceleratorsReader) -> None:
    machine.libraries.play(
        NVIDIA, MIG, GPM, GPM_INSTANCES, "nvmlSystemGetDriverVersion = 535.104.05"
    )
    assert "acc_instance_sm_active" not in read(reader, machine)


def test_the_exporter_has_the_names_of_dcgm(machine: Machine) -> None:
    machine.libraries.play(NVIDIA, MIG, GPM, GPM_INSTANCES)
    dcgm, own = (make(kind, gpu_vendors=("nvidia",)) for kind in (DcgmCollector, GpuCollector))
    found: dict[str, float] = {}

    def has_activity() -> bool:
        found.update(collected(dcgm, machine.node))
        return any(name.startswith("DCGM_FI_PROF_SM_ACTIVE") for name in found)

    try:
        until(has_activity)
        of_instances: dict[str, float] = {}
        until(lambda: of_instances.update(collected(own, machine.node)) or any(
            "sm_active" in name for name in of_instances
        ))  # fmt: skip
    finally:
        dcgm.sources.close()
        own.sources.close()
    active = {name: value for name, value in found.items() if "PROF_SM_ACTIVE" in name}
    assert sorted(active.values()) == [0, 0.4125, pytest.approx(0.605)]
    (large,) = (name for name, value in active.items() if value > 0.6)
    assert 'GPU_I_ID="1"' in large
    assert 'GPU_I_PROFILE="3g.40gb"' in large
    (sent,) = (value for name, value in found.items() if "PROF_PCIE_TX_BYTES" in name)
    assert sent == 100 << 20
    assert of_instances[
        f'ccagent_gpu_graphics_active_ratio{{gpu="2",uuid="{LARGE.stype_id}"}}'
    ] == pytest.approx(0.8)


def test_a_job_on_a_slice_has_a_utilization(machine: Machine) -> None:
    machine.libraries.play(NVIDIA, MIG, GPM, GPM_INSTANCES)
    gpus = machine.agent().settings.make_gpus(machine.node)
    try:

        def read() -> Any:
            gpus.ask("read", ["graphics_active"])
            return gpus.reading([])

        until(lambda: 2 not in read().without_utilization)
        reading = read()
    finally:
        gpus.close()
    # A reading within 0.1 s of another one has no activity: then the slices are unknown.
    use = {card.index: card.ce_util for card in reading.cards}
    assert use[2] == (0 if 2 in reading.without_utilization else 80)


EACH_ERROR = """
import ctypes, json, os, sys
import pynvml
from ccagent.machine.gpu import nvml
from ccagent.machine.background import LimitedCalls
from ccagent.machine.gpu.nvidia import Nvidia

nvml._SHORTEST = 0.0
base = sys.stdin.read()
path = os.environ["GPU_SCENARIO"]
library = ctypes.CDLL("libnvidia-ml.so.1")

def play(more=""):
    lines = {line.partition(" = ")[0]: line for line in (base + more).splitlines()}
    with open(path + ".new", "w") as file:
        file.write("\\n".join(lines.values()) + "\\n")
    os.replace(path + ".new", path)

wanted = frozenset({*nvml.ACTIVITY, *nvml.TRAFFIC, "pcie_replays", "mem_temperature"})
calls = LimitedCalls()

def read(vendor):
    reading = vendor.read()
    details = calls.run(lambda: vendor.read_details(wanted, calls), 30.0) or []
    found = {(d.card, one.name) for d in details for one in d.details}
    return len(reading.cards), {one for one in found if one[1] != nvml.GPU_INSTANCE}

def of_gpm(names):
    return {one for one in names if one[1] in nvml.ACTIVITY | nvml.TRAFFIC}

errors = sorted({
    value for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int) and value
})
failures, tried = [], 0
for function, lost in json.loads(os.environ["CALLS"]).items():
    for code in errors:
        play()
        vendor = Nvidia()
        vendor.open()
        read(vendor)
        cards, whole = read(vendor)
        play(f"{function} = !{code}\\n")
        if "Alloc" in function or "Support" in function or "InstanceId" in function:
            vendor.close()
            vendor = Nvidia()
            vendor.open()
        for _ in range(3):
            count, found = read(vendor)
        tried += 1
        expected = {one for one in of_gpm(whole) if lost == "all" or list(one) in lost}
        others = whole - of_gpm(whole)
        if count != cards or not others <= found or of_gpm(found) != of_gpm(whole) - expected:
            failures.append([function, code, sorted(of_gpm(whole) - expected ^ of_gpm(found))])
        play()
        vendor.close()
        alive = ctypes.c_long.in_dll(library, "gpm_samples").value
        if alive:
            failures.append([function, code, f"{alive} samples are not freed"])
            ctypes.c_long.in_dll(library, "gpm_samples").value = 0
play()
vendor = Nvidia()
vendor.open()
most = 0
for number in range(40):
    play("" if number % 2 else "nvmlDeviceGetMigMode 0 = 0 0\\n")
    read(vendor)
    most = max(most, ctypes.c_long.in_dll(library, "gpm_samples").value)
vendor.close()
left = ctypes.c_long.in_dll(library, "gpm_samples").value
print(json.dumps({"tried": tried, "failures": failures, "most": most, "left": left}))
"""

ALL_OF_INSTANCES = [[card, name] for card in (2, 3) for name in ("graphics_active", "sm_active")]
LARGER_ONLY = [
    [2, name]
    for name in ("sm_occupancy", "tensor_active", "dram_active", "fp64_active", "fp32_active")
]
CALLS = {
    "nvmlGpmQueryDeviceSupport 0": "all",
    "nvmlGpmSampleAlloc": "all",
    "nvmlGpmMetricsGet": "all",
    "nvmlGpmSampleFree": [],
    "nvmlGpmSampleGet 0": [
        [0, name.removeprefix("acc_")] for name in OF_CARD
    ],
    "nvmlGpmMigSampleGet 0 1": [*ALL_OF_INSTANCES[:2], *LARGER_ONLY],
    "nvmlDeviceGetGpuInstanceId 0/1": [*ALL_OF_INSTANCES[:2], *LARGER_ONLY],
    "nvmlGpmMetricsGet 0 2": [[0, "sm_active"]],
    "nvmlGpmMetricsGet 0.1 5": [[2, "tensor_active"]],
}  # fmt: skip
"""By function: the values that are lost without it."""


def test_each_error_of_each_call_costs_its_value(libraries: Libraries) -> None:
    libraries.play(NVIDIA, MIG, GPM, GPM_INSTANCES, "nvmlDeviceGetPcieReplayCounter 0 = 6",
                   "nvmlDeviceGetFieldValues 0 82 0 = 1:64")  # fmt: skip
    program = subprocess.run(
        [sys.executable, "-c", EACH_ERROR], input=libraries.scenario.read_text(),
        env={**libraries.environment, "CALLS": json.dumps(CALLS), "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert program.returncode == 0, program.stderr
    result = json.loads(program.stdout)
    freeing = [one for one in result["failures"] if "Free" not in one[0]]
    assert freeing == []
    assert result["tried"] >= 9 * 30
    assert result["most"] == 6, "two for each of the card and two slices"
    assert result["left"] == 0


def test_a_hanging_sample_costs_its_place(machine: Machine, reader: AcceleratorsReader) -> None:
    machine.libraries.play(NVIDIA, MIG, GPM, GPM_INSTANCES, "nvmlGpmMigSampleGet 0 1 = hang")
    found = read(reader, machine)
    assert found["acc_failing"][FIRST] == 0
    until(lambda: SMALL in read(reader, machine).get("acc_instance_sm_active", {}))
    machine.libraries.play(NVIDIA, MIG, GPM, GPM_INSTANCES)
    until(lambda: LARGE in read(reader, machine).get("acc_instance_sm_active", {}))


def test_the_library_has_the_layout_of_the_binding(libraries: Libraries) -> None:
    library = ctypes.CDLL(str(libraries.directory / "libnvidia-ml.so.1"))
    query, metric = NVML.c_nvmlGpmMetricsGet_t, NVML.c_nvmlGpmMetric_t
    expected = [
        query.sample1.offset, query.sample2.offset, query.metrics.offset,
        ctypes.sizeof(metric), metric.nvmlReturn.offset, metric.value.offset,
    ]  # fmt: skip
    assert [*(ctypes.c_size_t * 6).in_dll(library, "gpm_layout")] == expected
