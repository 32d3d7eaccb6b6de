"""Activity of NVIDIA's cards and MIG instances between two readings: NVML's GPM, Hopper and later.

Source: NVML API reference, "GPM Functions", "GPM Enums"; nvml.h for numbers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.machine.gpu.vendor import Detail

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.gpu.limited_calls import LimitedCalls
    from ccagent.machine.gpu.nvml import Device

ACTIVITY = {
    "graphics_active": 1,
    "sm_active": 2,
    "sm_occupancy": 3,
    "tensor_active": 5,
    "dram_active": 10,
    "fp64_active": 11,
    "fp32_active": 12,
    "fp16_active": 13,
}
"""Numbers of nvmlGpmMetricId_t in percent. Details have thousandths of a percent."""

TRAFFIC = {"gpm_pcie_tx": 20, "gpm_pcie_rx": 21, "gpm_nvlink_rx": 60, "gpm_nvlink_tx": 61}
"""Numbers of nvmlGpmMetricId_t in MiB/s. Details have B/s."""

PER_PERCENT = 1000
"""Value of a detail of ACTIVITY for 1 %."""

GPU_INSTANCE = "gpu_instance"
"""Detail of a MIG instance: the id of its GPU instance."""

_SHORTEST = 0.1
"""Minimum seconds between two samples. DCGM samples at most as often."""

_LARGEST_PERCENT, _ROUNDING = 100.0, 0.5
_LARGEST_RATE = 1e8

_FIRST_DRIVER_FOR_MIG = 550
"""Earlier drivers are reported to refuse the memory of instances after a sample of GPM."""


class GpmPlace(NamedTuple):
    """A card, or a MIG instance of it. number: index of the card or instance."""

    number: int
    card: Device
    instance: Device | None = None


class _Samples:
    """Two samples of NVML. taken: time of the sample in `first`; None: it is empty."""

    def __init__(self, first: Any, spare: Any) -> None:
        self.first = first
        self.spare = spare
        self.taken: float | None = None


_Key = tuple[int | None, int]
"""Address of a card in the library, and id of a GPU instance; -1: the whole card."""


class Gpm:
    """Keeps the last sample of each place. A value is the mean since that sample.

    An NVML error loses only the values of its call. Samples of places that no longer exist are
    freed. Samples of a hanging call are not, because the call still uses them.
    """

    def __init__(self, binding: Any, driver: str) -> None:
        major = driver.partition(".")[0]
        self._binding = binding
        self._has_instances = major.isdigit() and int(major) >= _FIRST_DRIVER_FOR_MIG
        self._samples: dict[_Key, _Samples] = {}
        self._without: set[int | None] = set()
        self._query: Any = None

    def read(
        self, places: Iterable[GpmPlace], wanted: frozenset[str], calls: LimitedCalls
    ) -> dict[int, list[Detail]]:
        """Return the wanted details by index; those of a first reading are empty."""
        numbers = {name: number for name, number in (ACTIVITY | TRAFFIC).items() if name in wanted}
        if not numbers or not hasattr(self._binding, "nvmlGpmSampleGet"):
            return {}
        found: dict[int, list[Detail]] = {}
        keys = self._find_keys(places, calls)
        for key, place in keys.items():
            values = self._read_place(key, place, numbers, calls)
            if values and place.instance is not None:
                values.append(Detail(GPU_INSTANCE, key[1]))
            found[place.number] = values
        for key in self._samples.keys() - keys.keys():
            self._free(self._samples.pop(key), calls)
        return found

    def close(self) -> None:
        """Free all samples."""
        for samples in self._samples.values():
            for one in (samples.first, samples.spare):
                _try(self._binding, "nvmlGpmSampleFree", one)
        self._samples.clear()

    def _find_keys(self, places: Iterable[GpmPlace], calls: LimitedCalls) -> dict[_Key, GpmPlace]:
        """Return the places that can be read, by key.

        Compute instances of the same GPU instance share its counters, so they have no values.
        """
        found: dict[_Key, GpmPlace | None] = {}
        for place in places:
            number: tuple[int, ...] | None = (-1,)
            if place.instance is not None:
                number = self._read_instance_id(place.instance, calls)
            if number and self._is_supported(place.card, calls):
                key = place.card.address, number[0]
                found[key] = None if key in found else place
        return {key: place for key, place in found.items() if place is not None}

    def _read_instance_id(self, instance: Device, calls: LimitedCalls) -> tuple[int, ...] | None:
        if not self._has_instances:
            return None
        name = "nvmlDeviceGetGpuInstanceId"
        return self._call(calls, instance.address, name, instance.handle)

    def _is_supported(self, card: Device, calls: LimitedCalls) -> bool:
        if card.address in self._without or any(card.address == one for one, _ in self._samples):
            return card.address not in self._without
        answer = self._call(calls, card.address, "nvmlGpmQueryDeviceSupport", card.handle)
        if answer and not answer[0].isSupportedDevice:
            self._without.add(card.address)
        return bool(answer and answer[0].isSupportedDevice)

    def _read_place(
        self, key: _Key, place: GpmPlace, numbers: dict[str, int], calls: LimitedCalls
    ) -> list[Detail]:
        samples = self._samples.get(key) or self._allocate(key, calls)
        now = time.monotonic()
        if samples is None or (samples.taken is not None and now - samples.taken < _SHORTEST):
            return []
        handle = place.card.handle
        if place.instance is None:
            taken = self._call(calls, key, "nvmlGpmSampleGet", handle, samples.spare)
        else:
            taken = self._call(calls, key, "nvmlGpmMigSampleGet", handle, key[1], samples.spare)
        if not taken:
            return self._forget(key) if taken is None else []
        values: list[Detail] = []
        if samples.taken is not None:
            query = self._make_query(samples, numbers)
            answer = self._call(calls, key, "nvmlGpmMetricsGet", query)
            if answer is None:
                return self._forget(key)
            if answer:
                values = _details(query, numbers)
        samples.first, samples.spare, samples.taken = samples.spare, samples.first, now
        return values

    def _allocate(self, key: _Key, calls: LimitedCalls) -> _Samples | None:
        first = self._call(calls, key, "nvmlGpmSampleAlloc")
        spare = self._call(calls, key, "nvmlGpmSampleAlloc") if first else None
        if not first or not spare:
            if first:
                self._call(calls, key, "nvmlGpmSampleFree", first[0])
            return None
        samples = self._samples[key] = _Samples(first[0], spare[0])
        return samples

    def _free(self, samples: _Samples, calls: LimitedCalls) -> None:
        for one in (samples.first, samples.spare):
            self._call(calls, "", "nvmlGpmSampleFree", one)

    def _forget(self, key: _Key) -> list[Detail]:
        """Drop samples that a hanging call uses."""
        del self._samples[key]
        self._query = None
        return []

    def _make_query(self, samples: _Samples, numbers: dict[str, int]) -> Any:
        query = self._query = self._query or self._binding.c_nvmlGpmMetricsGet_t()
        query.version = self._binding.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = len(numbers)
        query.sample1, query.sample2 = samples.first, samples.spare
        for place, number in enumerate(numbers.values()):
            query.metrics[place].metricId = number
        return query

    def _call(
        self, calls: LimitedCalls, key: object, name: str, *arguments: Any
    ) -> tuple[Any, ...] | None:
        """Return the result in a tuple; an empty tuple after an error; None if the call hangs."""
        return calls.call(f"{key} {name}", lambda: _try(self._binding, name, *arguments))


def _try(binding: Any, name: str, *arguments: Any) -> tuple[Any, ...]:
    try:
        return (getattr(binding, name)(*arguments),)
    except binding.NVMLError:
        return ()


def _details(query: Any, numbers: dict[str, int]) -> list[Detail]:
    """Return the values of an answer, without those that have an error or are implausible."""
    found: list[Detail] = []
    for place, name in enumerate(numbers):
        metric = query.metrics[place]
        largest = _LARGEST_PERCENT + _ROUNDING if name in ACTIVITY else _LARGEST_RATE
        if metric.nvmlReturn == 0 and 0 <= metric.value <= largest:
            value = min(metric.value, largest if name in TRAFFIC else _LARGEST_PERCENT)
            unit = PER_PERCENT if name in ACTIVITY else 1 << 20
            found.append(Detail(name, round(value * unit)))
    return found
