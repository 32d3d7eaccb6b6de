"""Interface of a GPU vendor: directories, addresses, descriptions and readings of its cards.

The methods run in a separate process (`ccagent.machine.gpu.gpus`). It may hang or die without
harm. Importing the module of a vendor must be cheap and load no library.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import msgspec

from ccagent.errors import ConfigurationError
from ccagent.records.envelopes import SampleGpu, SysinfoGpuCard
from ccagent.registry import load_gpu_vendor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.background import LimitedCalls
    from ccagent.machine.node import Node

DIRECTORIES = {
    "nvidia": ("sys/bus/pci/drivers/nvidia", "proc/driver/nvidia/gpus"),
    "amd": ("sys/bus/pci/drivers/amdgpu",),
}
"""Directories in which the built-in vendors' drivers list cards by address."""


class CardLostError(Exception):
    """The card no longer responds."""


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identity of a card, or of an instance of a partitioned card.

    index: from 0, within the vendor's cards of this node; instances follow all cards. address: PCI
    address as returned by `parse_address`; empty if a failing card does not report it. device:
    `major:minor` of its device file, as in device cgroups; empty if unknown. module: name of the
    module whose cards share one power meter; empty: the card has its own meter. multiprocessors: of
    an instance; of a card with instances, all that they may have; 0: unknown. has_shared_memory:
    whether an earlier instance reports the same memory.
    """

    index: int
    address: str = ""
    device: str = ""
    is_instance: bool = False
    module: str = ""
    multiprocessors: int = 0
    has_shared_memory: bool = False


UNKNOWN_MODULE = "?"
"""Module of a card that shares its power meter with an unknown other card."""


class CardDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a card, with the index, uuid and address of the library."""

    card: Card
    description: SysinfoGpuCard


class CardState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a card. An empty `state.uuid` is filled in later.

    has_utilization: whether `state.ce_util` is known; otherwise its value 0 has no meaning.
    has_memory: the same for `state.memory`. has_process_utilization: whether the utilization of its
    processes is known; otherwise that of the card is divided evenly.
    """

    card: Card
    state: SampleGpu
    has_utilization: bool = True
    has_memory: bool = True
    has_process_utilization: bool = True


class ProcessOnCard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Use of a card by a process.

    card: the index of the card. utilization, memory_percent: percent. memory: KB.
    """

    pid: int
    card: int
    utilization: float = 0.0
    memory: int = 0
    memory_percent: float = 0.0


class VendorReading(msgspec.Struct, frozen=True, kw_only=True):
    """State of all cards of a vendor, and their processes."""

    cards: list[CardState]
    processes: list[ProcessOnCard]


class Detail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value of a card that is read on demand.

    name: of the metric, without `acc_`. part: the number of a link; empty for the card.
    """

    name: str
    value: int
    part: str = ""


PER_PERCENT = 1000
"""Value of a detail of a card's activity for 1 %."""

GPU_INSTANCE = "gpu_instance"
"""Detail of a MIG instance: the id of its GPU instance."""


class CardDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Values of a card or instance on demand. card: its index."""

    card: int
    details: list[Detail]


class GpuVendor(ABC):
    """The cards of one vendor."""

    title: ClassVar[str]
    """Name of the library in errors."""
    directories: ClassVar[tuple[str, ...]]
    """Directories in which drivers list cards by PCI address. The first with any card is used."""

    @abstractmethod
    def open(self) -> None:
        """Load the library. Raise NotHereError with the reason if it is unusable."""

    @abstractmethod
    def describe(self) -> list[CardDescription]:
        """Describe the cards. Raise NotHereError if the library has become unusable."""

    @abstractmethod
    def read(self) -> VendorReading:
        """Read the state of the cards and their processes. Raise as `describe` does."""

    def read_details(
        self,
        wanted: frozenset[str],  # noqa: ARG002 - for those that have details
        calls: LimitedCalls,  # noqa: ARG002
    ) -> list[CardDetails]:
        """Read the wanted details of the cards of the last `read`, in a thread.

        Every call of the library must use `calls.call`: a hanging call then loses only its own
        details. Details that a card does not support are skipped.
        """
        return []

    @abstractmethod
    def close(self) -> None:
        """Close the library."""


_FORM = re.compile(r"([0-9A-F]{4,8}):([0-9A-F]{2}):([0-9A-F]{2}\.[0-7])", re.ASCII)


def parse_address(text: str) -> str:
    """Return an address in upper case, with eight digits of domain; empty if invalid."""
    match = _FORM.fullmatch(text.strip().upper())
    return "" if match is None else f"{match[1].zfill(8)}:{match[2]}:{match[3]}"


def gpu_vendor_class(name: str) -> type[GpuVendor]:
    """Return the class of a GPU vendor. Raise ConfigurationError for an unknown name."""
    found: type[GpuVendor] = load_gpu_vendor(name)
    return found


def vendor_directories(vendor: str) -> tuple[str, ...]:
    """Return the directories of a vendor. Raise ConfigurationError for an unknown one."""
    return DIRECTORIES.get(vendor) or gpu_vendor_class(vendor).directories


def check_vendor_names(key: str, vendors: Iterable[str]) -> None:
    """Raise ValueError with the key of a configuration that names an unknown vendor."""
    for vendor in vendors:
        try:
            vendor_directories(vendor)
        except ConfigurationError as error:
            raise ValueError(f"{key}: {error}") from error


def find_cards(node: Node, places: Iterable[str]) -> list[str]:
    """Return the addresses in the first of these directories with any address."""
    for place in places:
        found = [address for name in node.list_names(place) if (address := parse_address(name))]
        if found:
            return sorted(found)
    return []


def is_any_present(node: Node, vendors: Iterable[str]) -> bool:
    """Return whether this node has cards of any of these vendors."""
    return any(find_cards(node, vendor_directories(vendor)) for vendor in vendors)
