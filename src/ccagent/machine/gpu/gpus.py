"""The cards of all vendors on this node, as records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ccagent.machine.gpu.gpm import PER_PERCENT
from ccagent.machine.gpu.library import GpuLibrary
from ccagent.machine.gpu.vendor import CardState, Detail, gpu_vendor_class
from ccagent.records.envelopes import NO_FLOAT, SampleGpu, SampleProcessGpu, SysinfoGpuCard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.machine.node import Node


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """State of all cards, and their use by process (by pid).

    devices: index of the card by `major:minor` of its device file.
    addresses: PCI address by index; an instance has the address of its card.
    partitioned, instances: indices of cards with instances, and of the instances.
    without_utilization: indices of cards that do not report utilisation; an instance reports it
    with the detail `graphics_active`.
    without_memory: indices of cards that do not report memory.
    without_process_utilization: indices of cards whose utilisation is divided evenly among their
    processes.
    modules, multiprocessors: by index; see `Card`.
    details: values on demand by index.
    """

    cards: list[SampleGpu] = []
    processes: dict[int, list[SampleProcessGpu]] = {}
    devices: dict[str, int] = {}
    addresses: dict[int, str] = {}
    partitioned: frozenset[int] = frozenset()
    instances: frozenset[int] = frozenset()
    without_utilization: frozenset[int] = frozenset()
    without_memory: frozenset[int] = frozenset()
    without_process_utilization: frozenset[int] = frozenset()
    modules: dict[int, str] = {}
    multiprocessors: dict[int, int] = {}
    details: dict[int, list[Detail]] = {}


class Gpus:
    """The libraries of all vendors with cards on this node, each in a separate process.

    Call `ask` first, then `reading` or `descriptions`. These wait up to `patience` seconds. They do
    not wait for the answer to an earlier question. `limit`: seconds after which a library counts as
    hung. Indices continue from vendor to vendor in the order of `vendors`.
    """

    def __init__(
        self, node: Node, vendors: Iterable[str], patience: float, limit: float = 60.0
    ) -> None:
        self._libraries = [
            GpuLibrary(node, gpu_vendor_class(name), patience, limit) for name in vendors
        ]
        self._time_limit = patience

    def start(self) -> None:
        """Start the libraries before the first question."""
        for library in self._libraries:
            library.start()

    def ask(self, question: str, details: Iterable[str] = ()) -> None:
        """Send the question `read`, with these details, or `describe` to all vendors."""
        wanted = sorted(details)
        for library in self._libraries:
            library.ask(question, wanted)

    def reading(self, errors: list[str]) -> GpuReading:
        """Return the state of all cards. A library that fails adds to `errors`."""
        known: dict[int, CardState] = {}
        partitioned: set[int] = set()
        processes: dict[int, list[SampleProcessGpu]] = {}
        details: dict[int, list[Detail]] = {}
        deadline = time.monotonic() + self._time_limit
        first = 0
        for library in self._libraries:
            answer = library.answer(deadline, errors)
            states = library.states(answer)
            places = {each.card.address: first + each.card.index for each in reversed(states)}
            for each in states:
                known[first + each.card.index] = each
                if each.card.is_instance:
                    partitioned.add(places[each.card.address])
            for use in answer.reading.processes if answer.reading else ():
                index = first + use.card
                if index in known:
                    used = SampleProcessGpu(
                        index=index,
                        uuid=known[index].state.uuid,
                        gpu_util=use.utilization or NO_FLOAT,
                        gpu_memory=use.memory,
                        gpu_memory_util=use.memory_percent or NO_FLOAT,
                    )
                    processes.setdefault(use.pid, []).append(used)
            for of_card in answer.details:
                details[first + of_card.card] = of_card.details
            first += library.count
        instances = _select(known, lambda each: each.card.is_instance)
        rates = _use_of_instances(instances, details)
        return GpuReading(
            cards=[
                replace(each.state, index=index, ce_util=rates.get(index, each.state.ce_util))
                for index, each in known.items()
            ],
            processes=processes,
            # The first card with a device file has it: lost cards are last.
            devices={
                each.card.device: index
                for index, each in reversed(known.items())
                if each.card.device
            },
            addresses={index: each.card.address for index, each in known.items()},
            partitioned=frozenset(partitioned),
            instances=instances,
            without_utilization=_select(known, lambda each: not each.has_utilization)
            - rates.keys(),
            without_memory=_select(known, lambda each: not each.has_memory),
            without_process_utilization=_select(
                known, lambda each: not each.has_process_utilization
            ),
            modules={index: name for index, each in known.items() if (name := each.card.module)},
            multiprocessors={
                index: number
                for index, each in known.items()
                if (number := each.card.multiprocessors)
            },
            details=details,
        )

    def descriptions(self, errors: list[str]) -> list[SysinfoGpuCard]:
        """Return the descriptions of all cards. A library that fails adds to `errors`."""
        cards: list[SysinfoGpuCard] = []
        deadline = time.monotonic() + self._time_limit
        first = 0
        for library in self._libraries:
            for each in library.descriptions(library.answer(deadline, errors)):
                index = first + each.card.index
                cards.append(replace(each.description, index=index))
            first += library.count
        return cards

    def close(self) -> None:
        """End the processes of the libraries."""
        for library in self._libraries:
            library.close()


def _select(
    known: dict[int, CardState], is_selected: Callable[[CardState], bool]
) -> frozenset[int]:
    return frozenset(index for index, each in known.items() if is_selected(each))


def _use_of_instances(
    instances: frozenset[int], details: dict[int, list[Detail]]
) -> dict[int, int]:
    """Return the utilisation in percent of instances that report it."""
    return {
        index: round(detail.value / PER_PERCENT)
        for index in instances & details.keys()
        for detail in details[index]
        if detail.name == "graphics_active"
    }
