"""The cards of all vendors on this node, as records. Each library is in a separate process."""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ccagent.errors import CcagentError, ProgramError
from ccagent.machine.background import LimitedCalls
from ccagent.machine.gpu.vendor import (
    PER_PERCENT,
    CardDescription,
    CardDetails,
    CardState,
    Detail,
    VendorReading,
    find_cards,
    gpu_vendor_class,
)
from ccagent.machine.helper import Helper, serve
from ccagent.machine.node import BOOT_ID, Node
from ccagent.records.envelopes import NO_FLOAT, SampleGpu, SampleProcessGpu, SysinfoGpuCard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ccagent.machine.gpu.vendor import Card, GpuVendor

_RETRY = 600.0
"""Seconds until a failed library is tried again, or queried for details again."""
_DETAILS_PART = 0.5
"""Maximum share of the time limit of an answer for details."""


class GpuAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer: descriptions for `describe`, a reading for `read`, or the library's error.

    problem: the reason why requested details are missing.
    """

    descriptions: list[CardDescription] | None = None
    reading: VendorReading | None = None
    details: list[CardDetails] = []
    problem: str = ""
    error: str = ""


def main(descriptor: int, place: str) -> None:
    """Serve the vendor class at `place` (`module:Class`) until the client closes the socket.

    The questions are `describe` and `read`; `read SECONDS NAME...` also requests details, within
    this time.
    """
    module, _, name = place.partition(":")
    vendor: GpuVendor = getattr(import_module(module), name)()
    calls = LimitedCalls()
    try:
        vendor.open()
        problem = ""
    except CcagentError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - whatever a binding does, the sample goes on
        problem = _describe_error(vendor, error)

    def reply(question: bytes) -> bytes:
        return msgspec.msgpack.encode(
            GpuAnswer(error=problem) if problem else _answer(vendor, question, calls)
        )

    serve(descriptor, reply)
    if not problem:
        vendor.close()


def _answer(vendor: GpuVendor, question: bytes, calls: LimitedCalls) -> GpuAnswer:
    try:
        if question == b"describe":
            return GpuAnswer(descriptions=vendor.describe())
        reading = vendor.read()
        _, *words = question.decode("ascii").split()
        if not words:
            return GpuAnswer(reading=reading)
        return _answer_with_details(vendor, reading, words, calls)
    except CcagentError as error:
        return GpuAnswer(error=str(error))
    except Exception as error:  # noqa: BLE001 - see above
        return GpuAnswer(error=_describe_error(vendor, error))


def _answer_with_details(
    vendor: GpuVendor, reading: VendorReading, words: list[str], calls: LimitedCalls
) -> GpuAnswer:
    """Return an answer with details. An error in the details does not affect the rest."""
    seconds, *names = words
    wanted = frozenset(names)
    try:
        details = calls.run(lambda: vendor.read_details(wanted, calls), float(seconds))
        return GpuAnswer(reading=reading, details=details or [])
    except CcagentError:
        raise
    except Exception as error:  # noqa: BLE001 - see above
        return GpuAnswer(reading=reading, problem=_describe_error(vendor, error))


def _describe_error(vendor: GpuVendor, error: Exception) -> str:
    return f"{vendor.title}: {type(error).__name__}: {error}"


class GpuLibrary:
    """Library of a vendor, and its reported cards.

    Indices are the vendor's. Missing uuids and addresses are filled in. patience: seconds until an
    answer is late. limit: seconds until a call counts as hung.
    """

    def __init__(self, node: Node, vendor: type[GpuVendor], patience: float, limit: float) -> None:
        self._node = node
        self._vendor = vendor
        self._limit = limit
        self._helper: Helper | None = None
        self._asked = False
        self._problem = ""
        self._not_before = 0.0
        self._has_details = False
        self._details_not_before = 0.0
        self._has_answered = False
        self._is_doubtful = False
        self._patience = patience
        self._present: list[str] = []
        self._known: dict[str, Card] = {}
        self._uuids: dict[str, str] = {}
        self._highest = 0

    @property
    def count(self) -> int:
        """Number of indices of the known cards and instances."""
        return max(len(self._present), self._highest)

    def start(self) -> None:
        """Start the library if the vendor has cards on this node."""
        self._present = find_cards(self._node, self._vendor.directories)
        if self._present:
            try:
                self._process().start()
            except ProgramError as error:
                self._problem = str(error)

    def ask(self, question: str, details: Sequence[str] = ()) -> None:
        """Send a question if the vendor has cards here and no answer is pending.

        If the library died or was too slow at a question with details, questions are without
        details for ten minutes. A library that has never answered may have been slow to load: then
        only the next question is without details.
        """
        self._present = find_cards(self._node, self._vendor.directories)
        self._asked = False
        if time.monotonic() < self._not_before:
            return
        self._problem = ""
        if not self._present:
            return
        process = self._process()
        try:
            if process.is_asked and process.answer(0.0) is None:
                self._problem = f"{self._vendor.title}: has not answered since an earlier sample"
                return
            self._has_details = (
                bool(details)
                and not self._is_doubtful
                and time.monotonic() >= self._details_not_before
            )
            if self._has_details:
                question = " ".join([question, f"{_DETAILS_PART * self._patience:g}", *details])
            process.ask(question.encode("ascii"))
            self._asked = True
        except ProgramError as error:
            self._problem = str(error)

    def answer(self, deadline: float, errors: list[str]) -> GpuAnswer:
        """Return the answer; after `deadline` an empty one, with the reason in `errors`."""
        answer = GpuAnswer()
        if self._asked:
            try:
                content = self._process().answer(max(0.0, deadline - time.monotonic()))
                answer = self._decode(content)
            except ProgramError as error:
                self._problem = str(error)
                self._put_details_off()
        if self._problem:
            errors.append(self._problem)
        return answer

    def states(self, answer: GpuAnswer) -> list[CardState]:
        """Return the state of the cards. A missing card is marked as failing."""
        if answer.reading is None and self._present:
            return []
        states: list[CardState] = []
        seen: set[str] = set()
        for each in answer.reading.cards if answer.reading else ():
            address, uuid = self._identity(each.card, each.state.uuid, seen)
            card = replace(each.card, address=address)
            if not card.is_instance:
                self._known[address], self._uuids[address] = card, uuid
            state = replace(each.state, uuid=uuid)
            states.append(replace(each, card=card, state=state))
        # A restarted library renumbers the remaining cards.
        taken = {each.card.index for each in states}
        for address, card in self._known.items():
            if address not in seen:
                index = card.index if card.index not in taken else max(taken) + 1
                taken.add(index)
                state = SampleGpu(index=index, uuid=self._uuids[address], failing=1)
                place = replace(card, index=index)
                states.append(CardState(card=place, state=state, has_utilization=False))
        self._highest = max(self._highest, max(taken, default=-1) + 1)
        return states

    def descriptions(self, answer: GpuAnswer) -> list[CardDescription]:
        """Return the descriptions of the cards."""
        found: list[CardDescription] = []
        seen: set[str] = set()
        for each in answer.descriptions or ():
            address, uuid = self._identity(each.card, each.description.uuid, seen)
            description = replace(each.description, uuid=uuid, address=address)
            found.append(replace(each, description=description))
            self._highest = max(self._highest, each.card.index + 1)
        return found

    def close(self) -> None:
        """End the process."""
        if self._helper is not None:
            self._helper.close()

    def _process(self) -> Helper:
        if self._helper is None:
            self._helper = self._node.helper(
                self._vendor.title,
                "ccagent.machine.gpu.gpus:main",
                (f"{self._vendor.__module__}:{self._vendor.__qualname__}",),
                time_limit=self._limit,
            )
        return self._helper

    def _decode(self, content: bytes | None) -> GpuAnswer:
        """Decode an answer. After an error the library is reopened later."""
        if content is None:
            self._problem = f"{self._vendor.title}: has not answered in time"
            self._put_details_off()
            return GpuAnswer()
        try:
            answer = msgspec.msgpack.decode(content, type=GpuAnswer)
        except msgspec.MsgspecError as error:
            answer = GpuAnswer(error=f"{self._vendor.title}: {error}")
        self._has_answered, self._is_doubtful = True, False
        self._problem = answer.problem
        if answer.error:
            self._problem = answer.error
            self._not_before = time.monotonic() + _RETRY
            self._process().close()
        return answer

    def _put_details_off(self) -> None:
        if self._has_details and self._has_answered:
            self._details_not_before = time.monotonic() + _RETRY
            self._problem += "; ECC, NVLink and other details are skipped for ten minutes"
        elif self._has_details:
            self._is_doubtful = True

    def _identity(self, card: Card, uuid: str, seen: set[str]) -> tuple[str, str]:
        """Return address and uuid of a card: reported, known, or inferred.

        The address is added to `seen`, the addresses of the previous cards.
        """
        if card.is_instance:
            name = f"{card.address} instance {card.index}"
            return card.address, uuid or construct_uuid(self._node, name)
        was = [address for address, known in self._known.items() if known.index == card.index]
        at_its_place = self._present[card.index : card.index + 1]
        candidates = [card.address] if card.address else was + at_its_place
        address = next(
            (address for address in candidates if address not in seen), f"card {card.index}"
        )
        seen.add(address)
        return address, uuid or self._uuids.get(address) or construct_uuid(self._node, address)


def construct_uuid(node: Node, name: str) -> str:
    """Return a unique uuid for a card without one. It is stable until the next boot."""
    from uuid import NAMESPACE_DNS, UUID, uuid5

    try:
        boot = UUID(node.read_text(BOOT_ID))
    except ValueError:
        boot = NAMESPACE_DNS
    return str(uuid5(boot, f"{node.hostname} {name}"))


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
    with_shared_memory: indices of instances whose memory an earlier instance reports, too.
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
    with_shared_memory: frozenset[int] = frozenset()
    modules: dict[int, str] = {}
    multiprocessors: dict[int, int] = {}
    details: dict[int, list[Detail]] = {}

    def sum_memory(self, sizes: Mapping[int, int]) -> dict[int, int]:
        """Return the memory of each card with its instances. sizes: of all, by index."""
        places = {index: self.addresses.get(index) or str(index) for index in sizes}
        sums = dict.fromkeys(places.values(), 0)
        for index, size in sizes.items():
            if index not in self.with_shared_memory:
                sums[places[index]] += size
        return {index: sums[place] for index, place in places.items()}


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
            with_shared_memory=_select(known, lambda each: each.card.has_shared_memory),
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
