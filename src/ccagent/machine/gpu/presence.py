"""Detection of cards from files, before any library is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.config.registry import gpu_vendor_class
from ccagent.machine.gpu.vendor import list_addresses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node

DIRECTORIES = {
    "nvidia": ("sys/bus/pci/drivers/nvidia", "proc/driver/nvidia/gpus"),
    "amd": ("sys/bus/pci/drivers/amdgpu",),
}
"""Directories in which the built-in vendors' drivers list cards by address."""


def vendor_directories(vendor: str) -> tuple[str, ...]:
    """Return the directories of a vendor. Raise ConfigurationError for an unknown one."""
    return DIRECTORIES.get(vendor) or gpu_vendor_class(vendor).directories


def find_cards(node: Node, places: Iterable[str]) -> list[str]:
    """Return the addresses in the first of these directories with any address."""
    for place in places:
        found = list_addresses(node, place)
        if found:
            return found
    return []


def is_any_present(node: Node, vendors: Iterable[str]) -> bool:
    """Return whether this node has cards of any of these vendors."""
    return any(find_cards(node, vendor_directories(vendor)) for vendor in vendors)
