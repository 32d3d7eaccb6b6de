"""Prometheus endpoint: cards through a library that answers like NVML."""

from __future__ import annotations

from ccagent.exporter.gpu_metrics import DcgmCollector, GpuCollector
from tests.support.gpu_machine import Machine
from tests.support.gpu_scenarios import MIG, NVIDIA, NVIDIA_ADDRESSES
from tests.support.scraped import collected, make


def test_cards_of_a_node_in_both_sets_of_names(machine: Machine) -> None:
    machine.cards("nvidia", NVIDIA_ADDRESSES)
    machine.libraries.play(NVIDIA)
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    own = make(GpuCollector, gpu_vendors=("nvidia",))
    dcgm = make(DcgmCollector, gpu_vendors=("nvidia",))
    try:
        cards = collected(own, machine.node)
        names = collected(dcgm, machine.node)
    finally:
        own.sources.close()
        dcgm.sources.close()
    card = f'gpu="0",uuid="{uuid}"'
    assert cards[f"ccagent_gpu_utilization_ratio{{{card}}}"] == 0.87
    assert cards[f"ccagent_gpu_temperature_celsius{{{card}}}"] == 61
    assert cards[f"ccagent_gpu_memory_bytes{{{card}}}"] == 81920 << 20
    (used,) = [name for name in names if name.startswith("DCGM_FI_DEV_FB_USED") and uuid in name]
    assert 'modelName="NVIDIA H100 80GB HBM3"' in used
    assert 'pci_bus_id="00000000:0E:00.0"' in used
    assert names[used] == 19980
    (clock,) = [name for name in names if name.startswith("DCGM_FI_DEV_SM_CLOCK") and uuid in name]
    assert names[clock] == 1755
    (free,) = [name for name in names if name.startswith("DCGM_FI_DEV_FB_FREE") and uuid in name]
    assert names[free] == 61440  # NVML's `free`, without the 500 MiB of the driver
    assert names[free.replace("FREE", "RESERVED")] == 500


def test_memory_of_a_divided_card_includes_its_instances_in_dcgms_names(machine: Machine) -> None:
    machine.cards("nvidia", NVIDIA_ADDRESSES)
    machine.libraries.play(NVIDIA, MIG)
    dcgm = make(DcgmCollector, gpu_vendors=("nvidia",))
    try:
        names = collected(dcgm, machine.node)
    finally:
        dcgm.sources.close()
    found = {name[12:].split("{")[0]: value for name, value in names.items() if 'gpu="0"' in name}
    assert (found["FB_USED"], found["FB_FREE"], found["FB_RESERVED"]) == (19980, 61440, 500)
