"""NVIDIA's cards and their MIG instances, through NVML."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from msgspec.structs import replace

from ccagent.machine.gpu.nvml import CardMemory, Device, Gpm, GpmPlace, Nvml, as_watts
from ccagent.machine.gpu.vendor import (
    DIRECTORIES,
    Card,
    CardDescription,
    CardDetails,
    CardLostError,
    CardState,
    Detail,
    GpuVendor,
    ProcessOnCard,
    VendorReading,
    parse_address,
)
from ccagent.records.envelopes import SampleGpu, SysinfoGpuCard

if TYPE_CHECKING:
    from ccagent.machine.background import LimitedCalls
    from ccagent.machine.gpu.nvidia_details import XidWatch

_MAJOR = 195
"""Major number of the device files /dev/nvidia0 and following."""

_ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada",
    9: "Hopper", 10: "Blackwell", 13: "Rubin",
}  # fmt: skip
_LARGEST_PROFILES = (3, 4, 5)
"""NVML_GPU_INSTANCE_PROFILE_4_SLICE, _7_SLICE and _8_SLICE: the whole card in one instance."""

_SM, _MEMORY = 1, 2
"""Clocks: NVML_CLOCK_SM, NVML_CLOCK_MEM."""

_COMPUTE_MODES = {
    0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process",
}  # fmt: skip


class _Part(NamedTuple):
    """A card, or a MIG instance with its share of the card's memory."""

    card: Card
    device: Device
    memory: CardMemory


class Nvidia(GpuVendor):
    """NVIDIA's cards.

    Memory and processes of a MIG instance count only for the instance. Used and total memory of its
    card exclude the instances.
    """

    title: ClassVar[str] = "NVML"
    directories = DIRECTORIES["nvidia"]

    def __init__(self) -> None:
        self._opened: Nvml | None = None
        self._read: list[tuple[int, Device]] = []
        self._instances: list[tuple[int, Device, Device]] = []
        self._gpm: Gpm | None = None
        self._xids: XidWatch | None = None
        self._seen: dict[int, int | None] = {}

    def open(self) -> None:
        """Load NVML and initialise it."""
        self._opened = Nvml()

    def close(self) -> None:
        """Shut NVML down."""
        if self._gpm is not None:
            self._gpm.close()
        self._nvml.close()

    def describe(self) -> list[CardDescription]:
        """Describe the cards. A lost card is skipped."""
        driver = self._nvml.driver()
        found: list[CardDescription] = []
        for parts in self._cards():
            for part in parts:
                if isinstance(part, _Part):
                    with contextlib.suppress(CardLostError):
                        description = _description(part, driver)
                        found.append(CardDescription(card=part.card, description=description))
        return found

    def read(self) -> VendorReading:
        """Read the state of the cards and their processes."""
        cards: list[CardState] = []
        processes: list[ProcessOnCard] = []
        self._read, self._instances = [], []
        for parts in self._cards():
            for part in parts:
                card = part if isinstance(part, Card) else part.card
                state = SampleGpu(index=card.index, uuid="", failing=1)
                has_utilization = False
                has_memory = isinstance(part, _Part) and (part.memory.total > 0 or len(parts) > 1)
                if isinstance(part, _Part):
                    with contextlib.suppress(CardLostError):
                        # In MIG mode all processes are on the instances.
                        if card.is_instance or len(parts) == 1:
                            processes += _processes(part)
                        if card.is_instance and isinstance(parts[0], _Part):
                            state = _instance(part)
                            self._instances.append((card.index, parts[0].device, part.device))
                        else:
                            utilization = part.device.ask("nvmlDeviceGetUtilizationRates")
                            state = _state(part, 0 if utilization is None else utilization.gpu)
                            has_utilization = utilization is not None
                            self._read.append((card.index, part.device))
                cards.append(
                    CardState(
                        card=card,
                        state=state,
                        has_utilization=has_utilization,
                        has_memory=has_memory,
                    )
                )
        return VendorReading(cards=cards, processes=processes)

    def read_details(self, wanted: frozenset[str], calls: LimitedCalls) -> list[CardDetails]:
        """Read the wanted details of the cards; of their instances only the activity.

        A lost card has only Xid errors. They explain the loss.
        """
        from ccagent.machine.gpu.nvidia_details import card_details

        found = self._xid_details(wanted, calls)
        for index, device in self._read:
            with contextlib.suppress(CardLostError):
                found.setdefault(index, []).extend(card_details(device, wanted, calls))
        for index, details in self._activity(wanted, calls).items():
            found.setdefault(index, []).extend(details)
        return [CardDetails(card=index, details=details) for index, details in found.items()]

    def _activity(self, wanted: frozenset[str], calls: LimitedCalls) -> dict[int, list[Detail]]:
        """Return the activity since the previous reading, by index of card or instance."""
        if self._gpm is None:
            driver = calls.call("driver", self._nvml.driver)
            self._gpm = Gpm(self._nvml.binding, driver or "")
        places = [GpmPlace(index, device) for index, device in self._read]
        places += [GpmPlace(*place) for place in self._instances]
        return self._gpm.read(places, wanted, calls)

    def _xid_details(self, wanted: frozenset[str], calls: LimitedCalls) -> dict[int, list[Detail]]:
        """Return the number of Xid errors and the last error, by index of the card."""
        if wanted.isdisjoint({"xid", "xid_errors"}):
            return {}
        from ccagent.machine.gpu.nvidia_details import XidWatch

        watch = self._xids = self._xids or XidWatch(self._nvml.binding)
        devices = [device for _, device in self._read]
        self._seen |= {index: device.address for index, device in self._read}
        xids = calls.call("xids", lambda: watch.read(devices)) or {}
        return {
            index: [Detail("xid_errors", found.errors), Detail("xid", found.last)]
            for index, address in self._seen.items()
            if (found := xids.get(address)) is not None
        }

    @property
    def _nvml(self) -> Nvml:
        if self._opened is None:
            raise RuntimeError("not opened")
        return self._opened

    def _cards(self) -> list[list[_Part | Card]]:
        """Return each card, followed by its instances; of a lost card only the identity."""
        devices = self._nvml.devices()
        number = len(devices)
        found: list[list[_Part | Card]] = []
        for index, device in enumerate(devices):
            if device is None:
                found.append([Card(index=index)])
                continue
            try:
                card = _card(index, device)
                memory = device.memory()
                instances: list[_Part] = []
                seen: set[int] = set()
                for instance in self._nvml.instances(index, device):
                    with contextlib.suppress(CardLostError):  # the instance was just destroyed
                        attributes = instance.ask("nvmlDeviceGetAttributes_v2")
                        # Compute instances of one GPU instance all report its memory.
                        group = instance.gpu_instance()
                        place = Card(
                            index=number + len(instances),
                            address=card.address,
                            is_instance=True,
                            multiprocessors=getattr(attributes, "multiprocessorCount", 0),
                            has_shared_memory=group in seen,
                        )
                        instances.append(_Part(place, instance, instance.memory()))
                        if group is not None:
                            seen.add(group)
                if instances:
                    card = replace(card, multiprocessors=_most_multiprocessors(device))
            except CardLostError:
                found.append([Card(index=index)])
                continue
            own_memory = [part.memory for part in instances if not part.card.has_shared_memory]
            used = memory.used - sum(each.used for each in own_memory)
            total = memory.total - sum(each.total for each in own_memory)
            own = _Part(card, device, CardMemory(max(0, used), max(0, total)))
            found.append([own, *instances])
            number += len(instances)
        return found


def _card(index: int, device: Device) -> Card:
    minor = device.ask("nvmlDeviceGetMinorNumber")
    return Card(
        index=index,
        address=parse_address(device.bus_id()),
        device="" if minor is None else f"{_MAJOR}:{minor}",
    )


def _most_multiprocessors(device: Device) -> int:
    """Return the multiprocessors that all instances of a card together may have; 0 if unknown."""
    name = "nvmlDeviceGetGpuInstanceProfileInfo"
    found = [device.ask(name, number, key=f"{name} {number}") for number in _LARGEST_PROFILES]
    return max(getattr(info, "multiprocessorCount", 0) for info in found)


def _description(part: _Part, driver: str) -> SysinfoGpuCard:
    device = part.device
    low, high = device.ask("nvmlDeviceGetPowerManagementLimitConstraints") or (0, 0)
    return SysinfoGpuCard(
        index=part.card.index,
        uuid=device.text("nvmlDeviceGetUUID"),
        manufacturer="NVIDIA",
        model=device.text("nvmlDeviceGetName"),
        architecture=_ARCHITECTURES.get(device.number("nvmlDeviceGetArchitecture"), ""),
        driver=driver,
        firmware=device.text("nvmlDeviceGetVbiosVersion"),
        memory=part.memory.total,
        power_limit=device.watts("nvmlDeviceGetPowerManagementLimit"),
        min_power_limit=as_watts(low),
        max_power_limit=as_watts(high),
        max_ce_clock=device.number("nvmlDeviceGetMaxClockInfo", _SM),
        max_memory_clock=device.number("nvmlDeviceGetMaxClockInfo", _MEMORY),
    )


def _state(part: _Part, utilization: int) -> SampleGpu:
    device = part.device
    mode = device.ask("nvmlDeviceGetComputeMode")
    return SampleGpu(
        index=part.card.index,
        uuid=device.text("nvmlDeviceGetUUID"),
        fan=device.number("nvmlDeviceGetFanSpeed"),
        compute_mode=_COMPUTE_MODES.get(mode, ""),
        performance_state=device.performance_state(),
        memory=part.memory.used,
        ce_util=utilization,
        memory_util=part.memory.percent,
        temperature=device.temperature(),
        power=device.watts("nvmlDeviceGetPowerUsage"),
        power_limit=device.watts("nvmlDeviceGetPowerManagementLimit"),
        ce_clock=device.number("nvmlDeviceGetClockInfo", _SM),
        memory_clock=device.number("nvmlDeviceGetClockInfo", _MEMORY),
    )


def _instance(part: _Part) -> SampleGpu:
    """Return the values of an instance. All other values belong to the card."""
    return SampleGpu(
        index=part.card.index,
        uuid=part.device.text("nvmlDeviceGetUUID"),
        memory=part.memory.used,
        memory_util=part.memory.percent,
    )


def _processes(part: _Part) -> list[ProcessOnCard]:
    total = part.memory.total
    return [
        ProcessOnCard(
            pid=pid,
            card=part.card.index,
            utilization=use.utilization,
            memory=use.memory,
            memory_percent=round(100.0 * use.memory / total, 1) if total else 0.0,
        )
        for pid, use in part.device.processes().items()
    ]
