"""What a maker of cards gives: where they are listed, descriptions, readings.

The methods run in a process of the maker's own (`ccagent.machine.gpu.process`), which may hang or
die without harm. To import its module must be cheap and load no library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import msgspec

from ccagent.records.envelopes import SampleGpu, SysinfoGpuCard

if TYPE_CHECKING:
    from ccagent.machine.gpu.limited_calls import LimitedCalls


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which card, or which instance of a partitioned one.

    index: from 0, within the maker's cards of this node; instances come after all cards.
    address: of PCI, in the form of `address.canonical`; empty if a failing card doesn't tell.
    device: `major:minor` of its device file, as device cgroups name it; empty if unknown.
    """

    index: int
    address: str = ""
    device: str = ""
    is_instance: bool = False


class CardDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What seldom changes of a card; index, uuid and address of `description` are its own."""

    card: Card
    description: SysinfoGpuCard


class CardState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a card; `state.uuid` may be empty, then one is constructed.

    has_utilization: whether `state.ce_util` was told; else 0 means nothing.
    has_memory: the same of `state.memory`.
    """

    card: Card
    state: SampleGpu
    has_utilization: bool = True
    has_memory: bool = True


class ProcessOnCard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a process uses of a card.

    card: the index of the card. utilization, memory_percent: percent. memory: KB.
    """

    pid: int
    card: int
    utilization: float = 0.0
    memory: int = 0
    memory_percent: float = 0.0


class VendorReading(msgspec.Struct, frozen=True, kw_only=True):
    """All cards of a maker at one moment, and the processes on them."""

    cards: list[CardState]
    processes: list[ProcessOnCard]


class Detail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value of a card that is read on demand.

    name: of the metric, without `acc_`. part: the number of a link; empty for the card.
    """

    name: str
    value: int
    part: str = ""


class CardDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What a card tells on demand. card: its index."""

    card: int
    details: list[Detail]


class GpuVendor(ABC):
    """The cards of one maker."""

    title: ClassVar[str]
    """What errors call the library."""
    directories: ClassVar[tuple[str, ...]]
    """Where its drivers list their cards by PCI address; the first that has any counts."""

    @abstractmethod
    def open(self) -> None:
        """Load the library. Raises NotHereError with the reason if it can't be used."""

    @abstractmethod
    def describe(self) -> list[CardDescription]:
        """Describe the cards. Raises NotHereError if the library has become unusable."""

    @abstractmethod
    def read(self) -> VendorReading:
        """Read the state of the cards and their processes. Raises as `describe` does."""

    def read_details(
        self,
        wanted: frozenset[str],  # noqa: ARG002 - for those that have details
        calls: LimitedCalls,  # noqa: ARG002
    ) -> list[CardDetails]:
        """Read these details of the cards that the last `read` found, in a thread.

        Every call of the library goes through `calls.call`, so that one that hangs costs its
        own details only. A detail that a card cannot tell is left out.
        """
        return []

    @abstractmethod
    def close(self) -> None:
        """Let go of the library."""
