"""Accelerators as metrics, through the makers' real bindings and stand-ins for their libraries."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from ccagent.agents.metrics.agent import MetricsAgent
from ccagent.agents.metrics.cluster_config import cluster_config
from ccagent.agents.metrics.readers.accelerators import (
    DETAILS,
    AcceleratorsReader,
    AcceleratorsSettings,
)
from ccagent.agents.metrics.readers.base import Scope
from ccagent.agents.metrics.settings import MetricsSettings
from ccagent.config.duration import Duration
from ccagent.config.files import convert
from ccagent.errors import ConfigurationError, NotHereError
from ccagent.records.encoding import encode
from tests.support.gpu_machine import Machine
from tests.support.gpu_scenarios import (
    A40,
    AMD,
    AMD_ADDRESSES,
    DRIVER,
    H100,
    MIG,
    NVIDIA,
    NVIDIA_ADDRESSES,
)

FIRST = Scope("accelerator", "00000000:0E:00.0")
SECOND = Scope("accelerator", "00000000:C1:00.0")
MIG_1 = FIRST._replace(stype="mig", stype_id="MIG-aaaaaaaa-0000-0000-0000-000000000001")
MIG_4 = FIRST._replace(stype="mig", stype_id="MIG-aaaaaaaa-0000-0000-0000-000000000004")

LOST = "nvmlDeviceGetMemoryInfo_v2 0 = !15\nnvmlDeviceGetMemoryInfo 0 = !15"


def reader(time_limit: str) -> AcceleratorsReader:
    """Return a reader of what is always told: without details."""
    reader = AcceleratorsReader(AcceleratorsSettings(time_limit=Duration(time_limit)))
    reader.wanted = frozenset(reader.metrics) - DETAILS.keys()
    return reader


class Cards:
    """A machine with cards and the reader that looks at them."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.reader = reader("30s")

    def nvidia(self, *scenarios: str) -> None:
        self.machine.cards("nvidia", NVIDIA_ADDRESSES)
        self.machine.libraries.play(*scenarios)

    def amd(self, *scenarios: str) -> None:
        self.machine.cards("amdgpu", AMD_ADDRESSES)
        self.machine.libraries.play(*scenarios)

    def read(self) -> dict[str, dict[Scope, float]]:
        found: dict[str, dict[Scope, float]] = {}
        for metric, value, scope, *_ in self.reader.read(self.machine.node):
            assert scope not in found.setdefault(metric, {})
            found[metric][scope] = value
        return found


@pytest.fixture
def cards(machine: Machine) -> Iterator[Cards]:
    cards = Cards(machine)
    yield cards
    cards.reader.close()


def test_cards_have_values_at_their_addresses(cards: Cards) -> None:
    cards.nvidia(NVIDIA)
    assert cards.read() == {
        "acc_utilization": {FIRST: 87, SECOND: 0},
        "acc_mem_used": {FIRST: 20950548480, SECOND: 318382080 // 1024 * 1024},
        "acc_mem_share": {FIRST: 24, SECOND: 1},
        "acc_power": {FIRST: 512},
        "acc_power_limit": {FIRST: 700},
        "acc_temperature": {FIRST: 61, SECOND: -7},
        "acc_clock": {FIRST: 1755e6},
        "acc_mem_clock": {FIRST: 2600e6},
        "acc_failing": {FIRST: 0, SECOND: 0},
    }
    assert cards.reader.errors == []


def test_amds_have_the_same(cards: Cards) -> None:
    cards.amd(AMD)
    first, second = (Scope("accelerator", f"00000000:{bus}:00.0") for bus in ("C5", "C9"))
    found = cards.read()
    assert found["acc_utilization"] == {first: 90, second: 10}
    assert found["acc_mem_used"] == {first: 17175674880, second: 1073741824}
    assert found["acc_power"] == {first: 312}
    assert found["acc_temperature"] == {first: 55, second: -3}
    assert found["acc_clock"] == {first: 1650e6}


def test_a_divided_card_is_one_card(cards: Cards) -> None:
    cards.nvidia(DRIVER, H100, A40, MIG)
    found = cards.read()
    assert found["acc_utilization"] == {SECOND: 0}
    assert found["acc_mem_share"] == {SECOND: 1}
    assert found["acc_power"] == {FIRST: 512}
    # What the card tells holds what its instances use.
    assert found["acc_mem_used"][FIRST] == 20950548480
    assert found["acc_instance_mem_used"] == {MIG_1: 10737418240, MIG_4: 5368709120}


def test_compute_instances_of_a_gpu_instance_share_its_memory(cards: Cards) -> None:
    shared = "42949672960 0 32212254720 10737418240"
    cards.nvidia(
        DRIVER,
        H100,
        A40,
        MIG,
        f"nvmlDeviceGetMemoryInfo_v2 0/4 = {shared}",
        "nvmlDeviceGetGpuInstanceId 0/1 = 2",
        "nvmlDeviceGetGpuInstanceId 0/4 = 2",
    )
    found = cards.read()
    assert found["acc_mem_used"][FIRST] == 20950548480  # what the card reports
    assert found["acc_instance_mem_used"] == {MIG_1: 10737418240, MIG_4: 10737418240}


def test_what_a_card_cannot_tell_is_unknown_and_not_zero(cards: Cards) -> None:
    cards.nvidia(
        NVIDIA,
        "nvmlDeviceGetUtilizationRates 0 = !3",
        "nvmlDeviceGetMemoryInfo_v2 0 = !3",
        "nvmlDeviceGetMemoryInfo 0 = !3",
    )
    found = cards.read()
    assert found["acc_utilization"] == {SECOND: 0}
    assert found["acc_mem_used"].keys() == found["acc_mem_share"].keys() == {SECOND}
    assert found["acc_power"] == {FIRST: 512}


def test_what_an_amd_card_cannot_tell_is_unknown_and_not_zero(cards: Cards) -> None:
    cards.amd(AMD, "amdsmi_get_gpu_activity 0 = !2", "amdsmi_get_gpu_memory_total 0 = !2")
    found = cards.read()
    second = Scope("accelerator", "00000000:C9:00.0")
    assert found["acc_utilization"] == {second: 10}
    assert found["acc_mem_used"].keys() == found["acc_mem_share"].keys() == {second}


def test_a_card_that_fails_tells_only_that(cards: Cards) -> None:
    cards.nvidia(NVIDIA)
    cards.read()
    cards.nvidia(NVIDIA, LOST)
    found = cards.read()
    assert found["acc_failing"] == {FIRST: 1, SECOND: 0}
    assert found["acc_mem_used"].keys() == found["acc_utilization"].keys() == {SECOND}
    cards.nvidia(NVIDIA)
    assert cards.read()["acc_failing"] == {FIRST: 0, SECOND: 0}


def test_without_cards_nothing_is_loaded(cards: Cards) -> None:
    before, loaded = len(psutil.Process().children()), set(sys.modules)
    with pytest.raises(NotHereError, match="no driver has an accelerator"):
        cards.read()
    cards.reader.begin(cards.machine.node)
    assert len(psutil.Process().children()) == before
    assert not {"pynvml", "amdsmi", "ccagent.machine.helper"} & (set(sys.modules) - loaded)
    cards.nvidia(NVIDIA)
    assert FIRST in cards.read()["acc_power"]


def test_makers_may_be_left_out(machine: Machine) -> None:
    machine.cards("nvidia", NVIDIA_ADDRESSES)
    reader = AcceleratorsReader(AcceleratorsSettings(vendors=("amd",)))
    with pytest.raises(NotHereError):
        reader.read(machine.node)
    with pytest.raises(ConfigurationError, match=r"vendors: 'nvidea' is an unknown GPU vendor"):
        convert(
            {"accelerators": {"vendors": ["nvidea"]}}, MetricsSettings, "agents.metrics", place="x"
        )


def test_a_question_that_was_asked_before_is_answered(cards: Cards) -> None:
    cards.nvidia(NVIDIA)
    cards.read()
    cards.reader.begin(cards.machine.node)
    assert cards.read()["acc_power"] == {FIRST: 512}
    cards.nvidia(NVIDIA, "nvmlDeviceGetPowerUsage 0 = 300000")
    assert cards.read()["acc_power"] == {FIRST: 300}


def test_a_library_that_hangs_is_waited_for_once(cards: Cards) -> None:
    cards.nvidia(NVIDIA)
    cards.read()
    cards.reader.close()
    cards.reader = reader("1s")
    cards.nvidia(NVIDIA, "nvmlDeviceGetCount_v2 = hang")
    begin = time.monotonic()
    assert cards.read() == {}
    assert cards.reader.errors == ["NVML: has not answered in time"]
    assert time.monotonic() - begin >= 1
    assert cards.read() == {}
    assert cards.reader.errors == ["NVML: has not answered since an earlier sample"]


def test_a_library_that_dies_costs_a_sample(cards: Cards) -> None:
    cards.nvidia(NVIDIA, "nvmlDeviceGetCount_v2 = crash")
    assert cards.read() == {}
    (error,) = cards.reader.errors
    assert error.startswith("NVML: killed by SIG")
    cards.nvidia(NVIDIA)
    assert cards.read()["acc_power"] == {FIRST: 512}


def test_the_library_ends_with_the_reader(cards: Cards) -> None:
    before = len(psutil.Process().children())
    cards.nvidia(NVIDIA)
    cards.read()
    assert len(psutil.Process().children()) == before + 1
    cards.reader.close()
    assert len(psutil.Process().children()) == before


def test_lines_have_the_names_and_units_of_the_front_end(machine: Machine) -> None:
    machine.cards("nvidia", NVIDIA_ADDRESSES)
    machine.libraries.play(NVIDIA)
    settings = {"readers": ["accelerators"], "accelerators": {"time-limit": "30s"}}
    agent = MetricsAgent(
        convert(settings, MetricsSettings, "agents.metrics", place="x"), frozenset({"line"})
    )
    try:
        machine.node.still.sleep(agent.prepare(machine.node))
        (message,) = encode(agent.sample(machine.node), "line", machine.node)
    finally:
        agent.close()
    scope = "cluster=test.org,hostname=c1-1,type=accelerator,type-id=00000000:0E:00.0"
    lines = [line.split(" ") for line in message.body.decode().splitlines()]
    assert {time for _, _, time in lines} == {"1700001001"}
    values = {series: float(value.removeprefix("value=")) for series, value, _ in lines}
    for metric, value in (
        ("acc_utilization", 87),
        ("acc_mem_used", 20.95054848),
        ("acc_power", 512),
        ("acc_temperature", 61),
    ):
        assert values[f"{metric},{scope}"] == pytest.approx(value)
    assert {series.partition(",")[0] for series in values} == {
        name for name, metric in AcceleratorsReader.metrics.items() if metric.is_default
    }


def test_the_configuration_of_the_cluster_has_the_cards(cards: Cards) -> None:
    cards.nvidia(NVIDIA)
    settings = MetricsSettings(
        accelerators=AcceleratorsSettings(time_limit=Duration("30s")), readers=("accelerators",)
    )
    agent = MetricsAgent(settings, frozenset({"line"}))
    try:
        cluster = cluster_config(agent, cards.machine.node)
    finally:
        agent.close()
    accelerators = cluster["subClusters"][0]["topology"]["accelerators"]
    assert [each["id"] for each in accelerators] == [FIRST.type_id, SECOND.type_id]
    assert {each["type"] for each in accelerators} == {"Nvidia GPU"}
    scopes = {each["name"]: each["scope"] for each in cluster["metricConfig"]}
    assert scopes["acc_utilization"] == scopes["acc_power"] == "accelerator"
