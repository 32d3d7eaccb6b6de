"""The cards of this node, of all makers, as records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from ccagent.config.registry import gpu_vendor_class
from ccagent.machine.gpu.library import GpuLibrary
from ccagent.machine.gpu.vendor import Detail
from ccagent.records.envelopes import NO_FLOAT, SampleGpu, SampleProcessGpu, SysinfoGpuCard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.gpu.settings import GpuSettings
    from ccagent.machine.node import Node


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all cards, and what each process (by pid) uses of them.

    devices: index of the card by `major:minor` of its device file.
    addresses: of PCI by index; an instance has its card's.
    partitioned, instances: indices of the cards that have instances, and of these.
    without_utilization: indices of the cards that don't tell how busy they are.
    without_memory: indices of the cards that don't tell their memory.
    details: what was asked for on demand, by index.
    """

    cards: list[SampleGpu] = []
    processes: dict[int, list[SampleProcessGpu]] = {}
    devices: dict[str, int] = {}
    addresses: dict[int, str] = {}
    partitioned: frozenset[int] = frozenset()
    instances: frozenset[int] = frozenset()
    without_utilization: frozenset[int] = frozenset()
    without_memory: frozenset[int] = frozenset()
    details: dict[int, list[Detail]] = {}


class Gpus:
    """Asks each maker that has cards here, in a process of the maker's own.

    `ask` first, then `reading` or `descriptions`, which wait no longer than the settings'
    time limit, and not at all for what an earlier question is still waiting for. Indices go on
    from maker to maker, in the order of the settings.
    """

    def __init__(self, node: Node, settings: GpuSettings) -> None:
        self._libraries = [
            GpuLibrary(node, gpu_vendor_class(name), settings) for name in settings.gpu_vendors
        ]
        self._time_limit = settings.gpu_time_limit.seconds

    def start(self) -> None:
        """Start the libraries, so that they are ready by the first question."""
        for library in self._libraries:
            library.start()

    def ask(self, question: str, details: Iterable[str] = ()) -> None:
        """Ask all makers to `read`, with these details besides, or to `describe`."""
        wanted = sorted(details)
        for library in self._libraries:
            library.ask(question, wanted)

    def reading(self, errors: list[str]) -> GpuReading:
        """Give the state of all cards; a library that can't tell adds to `errors`."""
        cards: list[SampleGpu] = []
        processes: dict[int, list[SampleProcessGpu]] = {}
        devices: dict[str, int] = {}
        addresses: dict[int, str] = {}
        partitioned: set[int] = set()
        instances: set[int] = set()
        without_utilization: set[int] = set()
        without_memory: set[int] = set()
        details: dict[int, list[Detail]] = {}
        deadline = time.monotonic() + self._time_limit
        first = 0
        for library in self._libraries:
            answer = library.answer(deadline, errors)
            states = library.states(answer)
            places = {each.card.address: first + each.card.index for each in reversed(states)}
            uuids: dict[int, str] = {}
            for each in states:
                index = first + each.card.index
                uuids[index] = each.state.uuid
                addresses[index] = each.card.address
                cards.append(_renumber(each.state, index))
                if not each.has_utilization:
                    without_utilization.add(index)
                if not each.has_memory:
                    without_memory.add(index)
                if each.card.device:
                    devices[each.card.device] = index
                if each.card.is_instance:
                    partitioned.add(places[each.card.address])
                    instances.add(index)
            for use in answer.reading.processes if answer.reading else ():
                uuid = uuids.get(first + use.card)
                if uuid is not None:
                    used = SampleProcessGpu(
                        index=first + use.card,
                        uuid=uuid,
                        gpu_util=use.utilization or NO_FLOAT,
                        gpu_memory=use.memory,
                        gpu_memory_util=use.memory_percent or NO_FLOAT,
                    )
                    processes.setdefault(use.pid, []).append(used)
            for of_card in answer.details:
                details[first + of_card.card] = of_card.details
            first += library.count
        return GpuReading(
            cards=cards,
            processes=processes,
            devices=devices,
            addresses=addresses,
            partitioned=frozenset(partitioned),
            instances=frozenset(instances),
            without_utilization=frozenset(without_utilization),
            without_memory=frozenset(without_memory),
            details=details,
        )

    def descriptions(self, errors: list[str]) -> list[SysinfoGpuCard]:
        """Describe all cards; a library that can't adds to `errors`."""
        cards: list[SysinfoGpuCard] = []
        deadline = time.monotonic() + self._time_limit
        first = 0
        for library in self._libraries:
            for each in library.descriptions(library.answer(deadline, errors)):
                index = first + each.card.index
                cards.append(msgspec.structs.replace(each.description, index=index))
            first += library.count
        return cards

    def close(self) -> None:
        """End the processes of the libraries."""
        for library in self._libraries:
            library.close()


def _renumber(state: SampleGpu, index: int) -> SampleGpu:
    return state if state.index == index else msgspec.structs.replace(state, index=index)
