"""Cards and their jobs: names of our own, of dcgm-exporter, and files for dcgm-exporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ccagent.agents.sonar.jobs.allocations import Allocation
from ccagent.errors import NotHereError
from ccagent.exporter.collector import Collector
from ccagent.exporter.community_metrics import JobstatsCollector
from ccagent.exporter.gpu_metrics import (
    DcgmCollector,
    GpuCollector,
    GpuJobFiles,
    NvlinkRates,
    format_address,
)
from ccagent.exporter.sources import CardsOnNode, SharedReading
from ccagent.machine.gpu.gpus import GpuReading
from ccagent.machine.gpu.vendor import Detail
from ccagent.machine.node import Node
from ccagent.records.envelopes import SampleGpu, SampleProcessGpu, SysinfoGpuCard
from tests.support.scraped import collected, make


def card(index: int, **values: Any) -> SampleGpu:
    return SampleGpu(index=index, uuid=f"GPU-{index}", **values)


CARDS = CardsOnNode(
    GpuReading(
        cards=[
            card(0, ce_util=50, memory=2048, temperature=60, power=300, ce_clock=1400),
            card(1, ce_util=0, memory=1024),
            card(2, failing=1),
        ],
        processes={
            77: [SampleProcessGpu(index=0, uuid="GPU-0", gpu_util=50.0, gpu_memory=1)]
        },
        devices={"195:0": 0, "195:3": 1},
        addresses={0: "0000:3b:00.0", 1: "0000:5e:00.0"},
        without_utilization=frozenset({2}),
        without_memory=frozenset({2}),
        details={
            0: [
                Detail("energy", 5_000), Detail("xid", 79), Detail("pcie_replays", 2),
                Detail("mem_reserved", 500 << 10), Detail("vgpu_licensed", 0), Detail("fan", 0),
            ]
        },
    ),
    {
        index: SysinfoGpuCard(
            index=index, uuid=f"GPU-{index}", manufacturer="NVIDIA", model="H100",
            memory=81920 * 1024, driver="580",
        )
        for index in (0, 1)
    },
    [Allocation(12, 1001, (0, 1))],
    {77: 12},
)  # fmt: skip


def collector(kind: type[Collector], cards: CardsOnNode | None = CARDS) -> Collector:
    """Make a collector whose shared reading is given."""
    made = make(kind)

    def read(_: Node) -> CardsOnNode:
        if cards is None:
            raise NotHereError("none")
        return cards

    made.sources.cards = SharedReading(read)
    return made


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(root=str(tmp_path), hostname="c1", cluster="x")


def test_cards_and_the_job_that_has_them(node: Node) -> None:
    found = collected(collector(GpuCollector), node)
    first = 'gpu="0",uuid="GPU-0"'
    assert found[f"ccagent_gpu_utilization_ratio{{{first}}}"] == 0.5
    assert found[f"ccagent_gpu_memory_used_bytes{{{first}}}"] == 2048 * 1024
    assert found[f"ccagent_gpu_memory_bytes{{{first}}}"] == 80 * 1024**3
    assert found[f"ccagent_gpu_power_watts{{{first}}}"] == 300
    assert found[f"ccagent_gpu_fan_ratio{{{first}}}"] == 0
    assert found[f"ccagent_gpu_clock_hertz{{{first}}}"] == 1.4e9
    assert found[f"ccagent_gpu_energy_joules_total{{{first}}}"] == 5.0
    assert found['ccagent_gpu_failing{gpu="2",uuid="GPU-2"}'] == 1
    assert 'ccagent_gpu_power_watts{gpu="2",uuid="GPU-2"}' not in found
    assert found['ccagent_gpu_job{gpu="1",jobid="12",uuid="GPU-1"}'] == 1
    assert found['ccagent_job_gpus{jobid="12"}'] == 2
    assert found['ccagent_job_gpus_used{jobid="12"}'] == 1
    assert found['ccagent_job_gpus_idle{jobid="12"}'] == 1


@pytest.mark.parametrize("kind", [GpuCollector, DcgmCollector, JobstatsCollector])
def test_a_value_that_a_card_does_not_report_is_no_zero(node: Node, kind: type[Collector]) -> None:
    found = collected(collector(kind), node)
    names = {name.partition("{")[0] for name in found if "GPU-1" in name}
    assert not any(
        word in name for name in names for word in ("power", "POWER", "temp", "TEMP", "fan")
    )
    assert not any("clock" in name.lower() for name in names)
    assert not any("fan" in name and value for name, value in found.items() if "GPU-0" in name)


def test_the_names_of_dcgm_exporter(node: Node) -> None:
    found = collected(collector(DcgmCollector), node)
    first = (
        'DCGM_FI_DRIVER_VERSION="580",UUID="GPU-0",device="nvidia0",gpu="0",hostname="c1",'
        'modelName="H100",pci_bus_id="00000000:3B:00.0"'
    )
    assert found[f"DCGM_FI_DEV_GPU_UTIL{{{first}}}"] == 50
    assert found[f"DCGM_FI_DEV_FB_USED{{{first}}}"] == 2
    assert found[f"DCGM_FI_DEV_FB_FREE{{{first}}}"] == 81920 - 2 - 500
    assert found[f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{first}}}"] == 5_000
    assert found[f"DCGM_FI_DEV_XID_ERRORS{{{first}}}"] == 79
    assert found[f"DCGM_FI_DEV_FB_RESERVED{{{first}}}"] == 500
    assert found[f"DCGM_FI_DEV_VGPU_LICENSE_STATUS{{{first}}}"] == 0
    assert any('device="nvidia3"' in name for name in found)
    assert not any('gpu="2"' in name for name in found)


def test_rate_of_all_nvlinks(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((10.0, 14.0, 16.0))
    monkeypatch.setattr("time.monotonic", lambda: next(moments))

    def reading(sent: int, received: int) -> GpuReading:
        return GpuReading(details={0: [Detail("nvlink_tx", sent), Detail("nvlink_rx", received)]})

    rates, labels = NvlinkRates(), {0: ("0",)}
    assert rates.read(reading(1000, 500), labels) == []
    second = reading(9000, 4500)
    # 12,000 KiB in 4 s
    assert rates.read(second, labels) == [(("0",), 3)]
    assert rates.read(second, labels) == [(("0",), 3)]
    assert rates.read(reading(10, 10), labels) == []


@pytest.mark.parametrize("kind", [GpuCollector, DcgmCollector])
def test_a_node_without_cards(node: Node, kind: type[Collector]) -> None:
    with pytest.raises(NotHereError):
        collected(collector(kind, None), node)


def test_addresses() -> None:
    assert format_address("0000:3b:00.0") == "00000000:3B:00.0"
    assert format_address("") == ""


def test_files_follow_the_allocations(tmp_path: Path) -> None:
    files = GpuJobFiles(str(tmp_path))
    (tmp_path / "7").write_text("99\n")
    (tmp_path / "README").write_text("of somebody else")
    files.write(CARDS)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "0": "12\n", "1": "12\n", "README": "of somebody else",
    }  # fmt: skip
    files.write(CARDS._replace(allocations=[Allocation(13, 1, (1,)), Allocation(5, 1, (1,))]))
    assert {path.name for path in tmp_path.iterdir()} == {"1", "README"}
    assert (tmp_path / "1").read_text() == "5\n13\n"
    assert (tmp_path / "1").stat().st_mode & 0o777 == 0o644


def test_a_directory_that_is_gone_costs_only_the_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = GpuJobFiles(str(tmp_path / "none"))
    files.write(CARDS)
    assert "gpu-job-directory" in caplog.text


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    directory = tmp_path / "jobs"
    directory.mkdir()
    (directory / "0").symlink_to(other)
    GpuJobFiles(str(directory)).write(CARDS)
    assert other.read_text() == "precious"
    assert (directory / "0").read_text() == "12\n"
