"""Which cards are here: decided from files, before any library is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.config.registry import gpu_maker_class
from ccagent.machine.gpu.address import listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node

DIRECTORIES = {
    "nvidia": ("sys/bus/pci/drivers/nvidia", "proc/driver/nvidia/gpus"),
    "amd": ("sys/bus/pci/drivers/amdgpu",),
}
"""Where the drivers of the built-in makers list their cards by address."""


def directories(maker: str) -> tuple[str, ...]:
    """Give the directories of a maker. Raises ConfigurationError for an unknown one."""
    return DIRECTORIES.get(maker) or gpu_maker_class(maker).directories


def present(node: Node, places: Iterable[str]) -> list[str]:
    """Give the addresses in the first of these directories that has any."""
    for place in places:
        found = listed(node, place)
        if found:
            return found
    return []


def is_any_present(node: Node, makers: Iterable[str]) -> bool:
    """Tell whether there are cards of any of these makers."""
    return any(present(node, directories(maker)) for maker in makers)
