"""NVIDIA cards under the names of dcgm-exporter, as far as NVML reports the values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.errors import NotHereError
from ccagent.exporter.collector import Collector
from ccagent.exporter.family import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.family import Kind, Labels, Rows
    from ccagent.exporter.sources import CardsOnNode
    from ccagent.machine.node import Node

_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname")
_KIB_OF_MIB = 1024
_NVIDIA = "NVIDIA"
_MAJOR = "195:"
_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):(.+)", re.ASCII)


def _family(name: str, kind: Kind, text: str) -> Family:
    return Family(f"DCGM_FI_DEV_{name}", kind, text, _LABELS)


_STATES = (
    ("ce_clock", _family("SM_CLOCK", "gauge", "SM clock frequency (in MHz).")),
    ("memory_clock", _family("MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).")),
    ("temperature", _family("GPU_TEMP", "gauge", "GPU temperature (in C).")),
    ("power", _family("POWER_USAGE", "gauge", "Power draw (in W).")),
)
_UTILIZATION = _family("GPU_UTIL", "gauge", "GPU utilization (in %).")
_USED = _family("FB_USED", "gauge", "Framebuffer memory used (in MiB).")
_FREE = _family("FB_FREE", "gauge", "Framebuffer memory free (in MiB).")
_DETAILS = {
    "energy": _family(
        "TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ)."
    ),
    "mem_utilization": _family("MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."),
    "encoder_utilization": _family("ENC_UTIL", "gauge", "Encoder utilization (in %)."),
    "decoder_utilization": _family("DEC_UTIL", "gauge", "Decoder utilization (in %)."),
    "pcie_replays": _family("PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries."),
    "xid": _family("XID_ERRORS", "gauge", "Value of the last XID error encountered."),
    "remapped_rows_corrected": _family(
        "CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for correctable errors"
    ),
    "remapped_rows_uncorrected": _family(
        "UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for uncorrectable errors"
    ),
    "remapped_rows_failure": _family(
        "ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed"
    ),
}


class DcgmCollector(Collector):
    """NVIDIA cards without their MIG instances."""

    name = "dcgm"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read the cards through NVML. Raise NotHereError without an NVIDIA card."""
        cards = self.sources.cards.get(node)
        labels = _label_cards(cards, node.hostname)
        if not labels:
            raise NotHereError("no NVIDIA card")
        reading = cards.reading
        states = [card for card in reading.cards if card.index in labels and not card.failing]
        for field, family in _STATES:
            yield family, [(labels[card.index], getattr(card, field)) for card in states]
        yield (
            _UTILIZATION,
            [
                (labels[card.index], card.ce_util)
                for card in states
                if card.index not in reading.without_utilization
            ],
        )
        used: list[tuple[Labels, float]] = []
        free: list[tuple[Labels, float]] = []
        for card in states:
            if card.index not in reading.without_memory:
                own = labels[card.index]
                total = cards.descriptions[card.index].memory
                used.append((own, card.memory // _KIB_OF_MIB))
                free.append((own, max(0, total - card.memory) // _KIB_OF_MIB))
        yield _FREE, free
        yield _USED, used
        for name, family in _DETAILS.items():
            yield (
                family,
                [
                    (labels[index], detail.value)
                    for index, details in reading.details.items()
                    if index in labels
                    for detail in details
                    if detail.name == name and not detail.part
                ],
            )


def _label_cards(cards: CardsOnNode, hostname: str) -> dict[int, Labels]:
    """Return the labels of the NVIDIA cards by card index."""
    reading = cards.reading
    devices = {
        index: f"nvidia{device.removeprefix(_MAJOR)}"
        for device, index in reading.devices.items()
        if device.startswith(_MAJOR)
    }
    found: dict[int, Labels] = {}
    for card in reading.cards:
        index = card.index
        known = cards.descriptions.get(index)
        if known is None or known.manufacturer != _NVIDIA or index in reading.instances:
            continue
        address = format_address(reading.addresses.get(index, ""))
        device = devices.get(index, f"nvidia{index}")
        found[index] = (str(index), card.uuid, address, device, known.model, hostname)
    return found


def format_address(address: str) -> str:
    """Return a PCI address as NVML writes it: a domain of eight digits, in upper case."""
    found = _ADDRESS.fullmatch(address)
    return address if found is None else f"{int(found[1], 16):08X}:{found[2].upper()}"
