"""Calls of NVML (nvidia-ml-py). Unsupported values are skipped; a lost card is an error.

Source: NVML API reference, "Device Queries", "Multi Instance GPU Management"; nvml.h for codes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ccagent.errors import NotHereError
from ccagent.machine.gpu.vendor import CardLostError

_LARGEST_PERFORMANCE_STATE = 15
_LARGEST_PERCENT = 100
_ASK_AGAIN = 100
_ERROR_VERSION_MISMATCH, _ERROR_DEPRECATED = 25, 26
"""A code that older bindings lack: the driver does not support this version of a call."""


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
            for version in ("_v3", "_v2"):
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
