"""Calls of NVML (nvidia-ml-py), and the activity between two readings from its GPM.

Unsupported values are skipped; a lost card is an error. GPM has the cards and MIG instances of
Hopper and later.

Source: NVML API reference, "Device Queries", "Multi Instance GPU Management", "GPM Functions", "GPM
Enums"; nvml.h for numbers and codes.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.errors import NotHereError
from ccagent.machine.gpu.vendor import GPU_INSTANCE, PER_PERCENT, CardLostError, Detail

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.background import LimitedCalls

_LARGEST_PERFORMANCE_STATE = 15
_LARGEST_PERCENT = 100
_ASK_AGAIN = 100
_ERROR_VERSION_MISMATCH, _ERROR_DEPRECATED = 25, 26
"""A code that older bindings lack: the driver does not support this version of a call."""

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

_SHORTEST = 0.1
"""Minimum seconds between two samples. DCGM samples at most as often."""

_ROUNDING = 0.5
_LARGEST_RATE = 1e8

_WITH_OTHER_PROCESSES = (535, 43), (535, 98)
"""Drivers with another structure of processes: the first one, and the first one after them."""

_FIRST_DRIVER_FOR_MIG = 550
"""Earlier drivers are reported to refuse the memory of instances after a sample of GPM."""


class CardMemory(NamedTuple):
    """Memory of a card in KB. Memory reserved by the driver is neither used nor free."""

    used: int = 0
    total: int = 0

    @property
    def percent(self) -> int:
        """Used memory in percent."""
        return round(100 * self.used / self.total) if self.total else 0


class ProcessUse(NamedTuple):
    """Use of a card by a process: percent of the card, KB of its memory."""

    utilization: float
    memory: int


class Nvml:
    """The loaded library. Raise NotHereError if it is unusable."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NotHereError(f"NVML: the package nvidia-ml-py is missing: {error}") from error
        self.binding: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NotHereError(f"NVML: {error}") from error
        self._unusable = {
            pynvml.NVML_ERROR_UNINITIALIZED,
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        }
        self._lost = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED}
        self._unsupported = {
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            pynvml.NVML_ERROR_NO_PERMISSION,
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
            _ERROR_VERSION_MISMATCH,
            _ERROR_DEPRECATED,
        }
        self._devices: dict[tuple[int, int], Device] = {}

    def close(self) -> None:
        """Shut the library down."""
        self.binding.nvmlShutdown()

    def driver(self) -> str:
        """Return the version of the driver; empty if unknown."""
        try:
            return Device(self, None).text("nvmlSystemGetDriverVersion")
        except CardLostError:
            return ""  # a lost card must not prevent the reading of the others

    @cached_property
    def process_versions(self) -> tuple[str, ...]:
        """Return the versions of the calls for processes.

        The third one of some drivers fills a structure that only one release of the bindings had.
        """
        numbers = tuple(int(each) for each in self.driver().split(".")[:2] if each.isdecimal())
        first, end = _WITH_OTHER_PROCESSES
        return ("_v2",) if first <= numbers < end else ("_v3", "_v2")

    def devices(self) -> list[Device | None]:
        """Return the cards by index; None for a card that can't be opened."""
        try:
            count = self.binding.nvmlDeviceGetCount()
        except self.binding.NVMLError as error:
            raise NotHereError(f"NVML: {error}") from error
        return [
            self._device((index, -1), "nvmlDeviceGetHandleByIndex", index) for index in range(count)
        ]

    def instances(self, index: int, device: Device) -> list[Device]:
        """Return the instances of the card `index`; none unless it is in MIG mode."""
        mode = device.ask("nvmlDeviceGetMigMode")
        if mode is None or mode[0] != self.binding.NVML_DEVICE_MIG_ENABLE:
            return []
        # Numbers without an instance are not found.
        found = [
            self._device(
                (index, number), "nvmlDeviceGetMigDeviceHandleByIndex", device.handle, number
            )
            for number in range(device.number("nvmlDeviceGetMaxMigDeviceCount"))
        ]
        return [instance for instance in found if instance is not None]

    def is_unsupported(self, error: Any, *, vital: bool) -> bool:
        """Return whether an error means that a value is never available.

        Raise CardLostError if the card is lost, or if the value is vital.
        """
        code = error.value
        if code in self._unusable:
            raise NotHereError(f"NVML: {error}") from error
        if code in self._unsupported:
            return True
        if vital or code in self._lost:
            raise CardLostError from error
        return False

    def _device(self, place: tuple[int, int], function: str, *arguments: Any) -> Device | None:
        """Return the device of a handle: the same object for the same handle."""
        try:
            handle = getattr(self.binding, function)(*arguments)
        except self.binding.NVMLError as error:
            if error.value in self._unusable:
                raise NotHereError(f"NVML: {error}") from error
            return None
        known = self._devices.get(place)
        if known is None or known.address != handle_address(handle):
            known = self._devices[place] = Device(self, handle)
        return known


class Device:
    """A card or an instance. All methods raise CardLostError if it is lost."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self.handle = handle
        self._nvml = nvml
        self._unsupported: set[str] = set()
        self._seen = 0
        self._readings = 0

    @property
    def address(self) -> int | None:
        """Address of the device in the library."""
        return handle_address(self.handle)

    def ask(self, name: str, *arguments: Any, key: str = "", vital: bool = False) -> Any:
        """Call a function. Return None if the value is not available.

        An unsupported call (by `key`, else by `name`) is not repeated for a while.
        """
        key = key or name
        if key in self._unsupported:
            return None
        first = () if self.handle is None else (self.handle,)
        binding = self._nvml.binding
        try:
            return getattr(binding, name)(*first, *arguments)
        except binding.NVMLError as error:
            if self._nvml.is_unsupported(error, vital=vital):
                self._unsupported.add(key)
        except (AttributeError, UnicodeDecodeError):
            self._unsupported.add(key)
        return None

    def number(self, name: str, *arguments: Any) -> int:
        """Return a number; 0 if unknown."""
        key = f"{name} {arguments[0]}" if arguments else name
        return self.ask(name, *arguments, key=key) or 0

    def text(self, name: str) -> str:
        """Return a text; empty if unknown."""
        return as_text(self.ask(name))

    def bus_id(self) -> str:
        """Return the PCI address; empty if unknown."""
        info = self.ask("nvmlDeviceGetPciInfo")
        try:
            return "" if info is None else as_text(info.busId)
        except UnicodeDecodeError:
            return ""

    def gpu_instance(self) -> int | None:
        """Return the id of the GPU instance of a MIG instance; None after any error."""
        try:
            number: int | None = self.ask("nvmlDeviceGetGpuInstanceId")
        except (CardLostError, NotHereError):
            return None
        return number

    def watts(self, name: str) -> int:
        """Return a power in watts."""
        return as_watts(self.number(name))

    def memory(self) -> CardMemory:
        """Return the memory. Raise CardLostError for a card without this value."""
        name = "nvmlDeviceGetMemoryInfo"
        version = getattr(self._nvml.binding, "nvmlMemory_v2", None)
        # The first version counts memory reserved by the driver as used.
        memory = version and self.ask(name, version, key=f"{name}_v2", vital=True)
        memory = memory or self.ask(name, vital=True)
        return (
            CardMemory()
            if memory is None
            else CardMemory(memory.used // 1024, memory.total // 1024)
        )

    def temperature(self) -> int:
        """Return degrees Celsius. The older function returns an unsigned number."""
        sensor = self._nvml.binding.NVML_TEMPERATURE_GPU
        signed = self.ask("nvmlDeviceGetTemperatureV", sensor)
        if signed is not None:
            return int(signed)
        degrees = self.number("nvmlDeviceGetTemperature", sensor)
        return degrees - (1 << 32) if degrees >= 1 << 31 else degrees

    def performance_state(self) -> int:
        """Return the performance state P0 to P15 as ExtendedUint: 0 unknown, n + 2 for Pn."""
        state = self.ask("nvmlDeviceGetPerformanceState")
        return state + 2 if state is not None and 0 <= state <= _LARGEST_PERFORMANCE_STATE else 0

    def processes(self) -> dict[int, ProcessUse]:
        """Return the use of each process: compute, graphics and MPS.

        A process may be in several lists, with the same memory. Utilisation is since the previous
        call.
        """
        self._readings += 1
        if self._readings % _ASK_AGAIN == 0:
            self._unsupported.clear()  # the card's MIG mode may have changed
        memory: dict[int, int] = {}
        for kind in ("Compute", "Graphics", "MPSCompute"):
            for version in self._nvml.process_versions:
                listed = self.ask(f"nvmlDeviceGet{kind}RunningProcesses{version}")
                if listed is None:
                    continue
                for process in listed:
                    size = (process.usedGpuMemory or 0) // 1024
                    memory[process.pid] = max(size, memory.get(process.pid, 0))
                break
        rates = self._utilization() if memory else {}
        return {pid: ProcessUse(rates.get(pid, 0.0), size) for pid, size in memory.items()}

    def _utilization(self) -> dict[int, float]:
        """Return percent of the card by process since the last reading.

        The driver averages over the part of its buffer since the given time stamp. The first
        reading averages over the whole buffer. Some entries of the driver are meaningless.
        """
        since = self._seen
        rates: dict[int, list[int]] = {}
        for sample in self.ask("nvmlDeviceGetProcessUtilization", since) or ():
            if sample.pid and sample.smUtil <= _LARGEST_PERCENT and sample.timeStamp > since:
                rates.setdefault(sample.pid, []).append(sample.smUtil)
                self._seen = max(self._seen, sample.timeStamp)
        return {pid: round(sum(values) / len(values), 1) for pid, values in rates.items()}


def handle_address(handle: Any) -> int | None:
    """Return the address behind a handle of the library."""
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value


def as_text(value: Any) -> str:
    """Return a text of NVML as string. Bindings return bytes or strings."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def as_watts(milliwatts: int) -> int:
    """Return watts, rounded."""
    return (milliwatts + 500) // 1000


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
