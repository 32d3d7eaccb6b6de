"""Details of NVIDIA's cards on demand: errors, memory, throttling, engines, energy, NVLink, Xids.

Source: NVML API reference, "Device Queries", "Field Value Queries", "NvLink Methods", "Event
Handling Methods"; nvml.h for numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.errors import CcagentError
from ccagent.machine.gpu.nvml import Device, handle_address
from ccagent.machine.gpu.vendor import CardLostError, Detail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ccagent.machine.background import LimitedCalls


_LINKS = 36
"""NVML_NVLINK_MAX_LINKS. The card rejects numbers of missing links."""

_ALL_LINKS = 0xFFFFFFFF
_TRAFFIC = {"tx": 138, "rx": 139}
"""Numbers of NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_*: counters in KiB of a link or of all links."""
_ERRORS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc": 3, "ecc": 4}
"""Numbers of nvmlNvLinkErrorCounter_t."""


def read_links(
    ask: Callable[..., Any],
    fields: Callable[[list[tuple[int, int]]], list[int | None]],
    wanted: frozenset[str],
) -> Iterator[Detail]:
    """Return the wanted details of a card and its links. Details without a value are skipped."""
    names = {name for name in wanted if name.startswith("nvlink_")}
    traffic = [direction for direction in _TRAFFIC if f"nvlink_{direction}" in names]
    totals = fields([(_TRAFFIC[direction], _ALL_LINKS) for direction in traffic])
    for direction, total in zip(traffic, totals, strict=True):
        if total is not None:
            yield Detail(f"nvlink_{direction}", total)
    if names <= {"nvlink_tx", "nvlink_rx"}:
        return
    states = {link: ask("nvmlDeviceGetNvLinkState", link) for link in range(_LINKS)}
    active = {link: state for link, state in states.items() if isinstance(state, int)}
    if active:
        yield from _of_states(active, names)
        yield from _of_errors(ask, active, names)
        yield from _of_traffic(fields, active, names)


def _of_states(states: dict[int, int], names: set[str]) -> Iterator[Detail]:
    if "nvlink_active" in names:
        yield Detail("nvlink_active", sum(map(bool, states.values())))
    if "nvlink_link_active" in names:
        for link, state in states.items():
            yield Detail("nvlink_link_active", int(bool(state)), str(link))


def _of_errors(
    ask: Callable[..., Any], states: dict[int, int], names: set[str]
) -> Iterator[Detail]:
    for kind, counter in _ERRORS.items():
        total, of_link = f"nvlink_{kind}_errors", f"nvlink_link_{kind}_errors"
        if not names & {total, of_link}:
            continue
        counts = {link: ask("nvmlDeviceGetNvLinkErrorCounter", link, counter) for link in states}
        known = {link: count for link, count in counts.items() if isinstance(count, int)}
        if known and total in names:
            yield Detail(total, sum(known.values()))
        if of_link in names:
            for link, count in known.items():
                yield Detail(of_link, count, str(link))


def _of_traffic(
    fields: Callable[[list[tuple[int, int]]], list[int | None]],
    states: dict[int, int],
    names: set[str],
) -> Iterator[Detail]:
    for direction, number in _TRAFFIC.items():
        if f"nvlink_link_{direction}" in names:
            values = fields([(number, link) for link in states])
            for link, value in zip(states, values, strict=True):
                if value is not None:
                    yield Detail(f"nvlink_link_{direction}", value, str(link))


_NUMBERS: dict[str, tuple[str, tuple[int, ...]]] = {
    "energy": ("nvmlDeviceGetTotalEnergyConsumption", ()),
    "fan": ("nvmlDeviceGetFanSpeed", ()),
    "pcie_replays": ("nvmlDeviceGetPcieReplayCounter", ()),
    "pcie_tx": ("nvmlDeviceGetPcieThroughput", (0,)),
    "pcie_rx": ("nvmlDeviceGetPcieThroughput", (1,)),
    "graphics_clock": ("nvmlDeviceGetClockInfo", (0,)),
    "video_clock": ("nvmlDeviceGetClockInfo", (3,)),
    "max_graphics_clock": ("nvmlDeviceGetMaxClockInfo", (0,)),
    "max_clock": ("nvmlDeviceGetMaxClockInfo", (1,)),
    "max_mem_clock": ("nvmlDeviceGetMaxClockInfo", (2,)),
    "max_video_clock": ("nvmlDeviceGetMaxClockInfo", (3,)),
    "ecc_corrected": ("nvmlDeviceGetTotalEccErrors", (0, 1)),
    "ecc_uncorrected": ("nvmlDeviceGetTotalEccErrors", (1, 1)),
    "ecc_corrected_volatile": ("nvmlDeviceGetTotalEccErrors", (0, 0)),
    "ecc_uncorrected_volatile": ("nvmlDeviceGetTotalEccErrors", (1, 0)),
}
"""Functions and arguments: kinds of clocks, errors and error counters, directions."""

_FIRST_OF_PAIR = {
    "ecc_enabled": "nvmlDeviceGetEccMode",
    "encoder_utilization": "nvmlDeviceGetEncoderUtilization",
    "decoder_utilization": "nvmlDeviceGetDecoderUtilization",
    "jpeg_utilization": "nvmlDeviceGetJpgUtilization",
    "ofa_utilization": "nvmlDeviceGetOfaUtilization",
}
"""Functions that return a list. Its first element is the current value."""

_FIELDS = {
    "retired_pages_single_bit": 29,
    "retired_pages_double_bit": 30,
    "retired_pages_pending": 31,
    "violation_power": 74,
    "violation_thermal": 75,
    "violation_sync_boost": 76,
    "violation_board_limit": 77,
    "violation_low_util": 78,
    "violation_reliability": 79,
    "violation_below_app_clock": 80,
    "violation_below_base_clock": 81,
    "mem_temperature": 82,
}
"""Numbers of fields: NVML_FI_DEV_RETIRED_*, _PERF_POLICY_*, _MEMORY_TEMP."""

_RETIRED = ("retired_pages_single_bit", "retired_pages_double_bit")

_REMAPPED = (
    "remapped_rows_corrected", "remapped_rows_uncorrected", "remapped_rows_pending",
    "remapped_rows_failure",
)  # fmt: skip
"""Names in the order of nvmlDeviceGetRemappedRows."""

_REASONS = {
    "throttle_idle": 0x1,
    "throttle_clock_setting": 0x2,
    "throttle_power_cap": 0x4,
    "throttle_hw_slowdown": 0x8,
    "throttle_sync_boost": 0x10,
    "throttle_sw_thermal": 0x20,
    "throttle_hw_thermal": 0x40,
    "throttle_power_brake": 0x80,
    "throttle_display": 0x100,
}
"""Bits of nvmlClocksEventReasons."""

_LARGEST_PERFORMANCE_STATE = 15
_MEMORY_VERSION = 0x2000028
"""nvmlMemory_v2. Drivers before 510 lack it, and count reserved memory as used."""
_VGPU = 1
"""NVML_GRID_LICENSE_FEATURE_CODE_VGPU."""


def card_details(device: Device, wanted: frozenset[str], calls: LimitedCalls) -> list[Detail]:
    """Return the wanted details that a card supports. Raise CardLostError if it is lost."""
    asked = _Query(device, calls)
    found = [
        Detail(name, value)
        for name, value in _values(asked, wanted)
        if isinstance(value, int) and value >= 0 and name in wanted
    ]
    return [*found, *read_links(asked.ask, asked.fields, wanted)]


class _Query:
    """Queries of one card, each with a time limit."""

    def __init__(self, device: Device, calls: LimitedCalls) -> None:
        self._device = device
        self._calls = calls

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a function. Return None if it is not supported or takes too long."""
        words = (name, *map(str, arguments))
        return self._call(name, lambda: self._device.ask(name, *arguments, key=" ".join(words)))

    def fields(self, numbers: list[tuple[int, int]]) -> list[int | None]:
        """Read fields by number and scope. A field without a value is None."""
        name = "nvmlDeviceGetFieldValues"
        values = self._call(name, lambda: self._device.ask(name, numbers)) if numbers else None
        return [None] * len(numbers) if values is None else [*map(field_number, values)]

    def _call(self, name: str, function: Callable[[], Any]) -> Any:
        try:
            return self._calls.call(f"{id(self._device)} {name}", function)
        except (CardLostError, CcagentError):
            raise
        except Exception:  # noqa: BLE001 - whatever the binding does, it costs this detail only
            return None


def _values(asked: _Query, wanted: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield the wanted values; a missing one is None."""
    for name in sorted(wanted & _NUMBERS.keys()):
        function, arguments = _NUMBERS[name]
        yield name, asked.ask(function, *arguments)
    for name in sorted(wanted & _FIRST_OF_PAIR.keys()):
        pair = asked.ask(_FIRST_OF_PAIR[name])
        yield name, pair[0] if pair else None
    if "mem_utilization" in wanted:
        rates = asked.ask("nvmlDeviceGetUtilizationRates")
        yield "mem_utilization", None if rates is None else rates.memory
    if "performance_state" in wanted:
        state = asked.ask("nvmlDeviceGetPerformanceState")
        is_known = state is not None and state <= _LARGEST_PERFORMANCE_STATE
        yield "performance_state", state if is_known else None
    if "mem_reserved" in wanted:
        memory = asked.ask("nvmlDeviceGetMemoryInfo", _MEMORY_VERSION)
        yield "mem_reserved", None if memory is None else memory.reserved // 1024
    if "vgpu_licensed" in wanted:
        yield "vgpu_licensed", _is_vgpu_licensed(asked.ask("nvmlDeviceGetGridLicensableFeatures"))
    if wanted.intersection(_REMAPPED):
        yield from zip(_REMAPPED, asked.ask("nvmlDeviceGetRemappedRows") or (), strict=False)
    if not wanted.isdisjoint(_REASONS):
        yield from _reasons(asked)
    yield from _of_fields(asked, wanted)


def _is_vgpu_licensed(features: Any) -> int | None:
    """Return 1 if the card is a licensed vGPU, else 0; None if unknown."""
    if features is None:
        return None
    listed = features.gridLicensableFeatures[: features.licensableFeaturesCount]
    return int(any(each.featureCode == _VGPU and each.featureState for each in listed))


def _reasons(asked: _Query) -> Iterator[tuple[str, int]]:
    """Yield 0 or 1 by reason of throttling. Drivers before 535 have another function name."""
    mask = asked.ask("nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:
        mask = asked.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    if isinstance(mask, int):
        for name, bit in _REASONS.items():
            yield name, int(bool(mask & bit))


def _of_fields(asked: _Query, wanted: frozenset[str]) -> Iterable[tuple[str, int | None]]:
    names = [
        name
        for name in _FIELDS
        if name in wanted or (name in _RETIRED and "retired_pages" in wanted)
    ]
    values = dict(zip(names, asked.fields([(_FIELDS[name], 0) for name in names]), strict=True))
    retired = [value for name in _RETIRED if (value := values.get(name)) is not None]
    return [*values.items(), ("retired_pages", sum(retired) if len(retired) > 1 else None)]


def field_number(field: Any) -> int | None:
    """Return the number of an nvmlFieldValue_t; None if the card does not report it."""
    member = _MEMBERS.get(field.valueType)
    if field.nvmlReturn != 0 or member is None:
        return None
    value = getattr(field.value, member)
    return int(value) if math.isfinite(value) else None


_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""Members of the union nvmlValue_t by nvmlValueType_t."""

_MOST_EVENTS = 1000
"""Maximum number of events per reading. The next reading returns the rest."""


class Xids(NamedTuple):
    """Number of errors since the start of the watch, and the last error; 0: none."""

    errors: int = 0
    last: int = 0


class XidWatch:
    """Watches cards for Xid errors, which the driver delivers as events, from the first reading on.

    Earlier errors are not counted.
    """

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self._events: Any = None
        self._watched: set[int | None] = set()
        self._found: dict[int | None, Xids] = {}

    def read(self, devices: Iterable[Device]) -> dict[int | None, Xids]:
        """Return the errors so far by address of the handle, for cards that report them."""
        binding = self._binding
        try:
            if self._events is None:
                self._events = binding.nvmlEventSetCreate()
        except binding.NVMLError:
            return {}
        for device in devices:
            number = device.address
            if number in self._watched:
                continue
            try:
                binding.nvmlDeviceRegisterEvents(
                    device.handle, binding.nvmlEventTypeXidCriticalError, self._events
                )
            except binding.NVMLError:
                continue
            self._watched.add(number)
        self._take()
        return dict.fromkeys(self._watched, Xids()) | self._found

    def _take(self) -> None:
        """Read all pending events. After an error the watch is restarted."""
        binding = self._binding
        for _ in range(_MOST_EVENTS):
            try:
                event = binding.nvmlEventSetWait_v2(self._events, 0)
            except binding.NVMLError as error:
                if error.value != binding.NVML_ERROR_TIMEOUT:
                    self._restart()
                return
            if event.eventType == binding.nvmlEventTypeXidCriticalError:
                number = handle_address(event.device)
                errors = self._found.get(number, Xids()).errors
                self._found[number] = Xids(errors + 1, int(event.eventData))

    def _restart(self) -> None:
        """Free the event set: a card that fell off the bus makes it fail for all cards."""
        events, self._events = self._events, None
        self._watched.clear()
        try:
            self._binding.nvmlEventSetFree(events)
        except self._binding.NVMLError:
            return
