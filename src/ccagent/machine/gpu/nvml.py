"""Calls of NVML (nvidia-ml-py): what a card can't tell is left out, a lost card is an error.

Source: NVML API reference, "Device Queries", "Multi Instance GPU Management"; nvml.h for codes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ccagent.errors import NotHereError

_LARGEST_PERFORMANCE_STATE = 15
_LARGEST_PERCENT = 100
_ASK_AGAIN = 100


class CardLostError(Exception):
    """The card does not answer any more."""


class CardMemory(NamedTuple):
    """In KB. What the driver holds back is neither used nor free."""

    used: int = 0
    total: int = 0

    @property
    def percent(self) -> int:
        """What is in use, of all."""
        return round(100 * self.used / self.total) if self.total else 0


class ProcessUse(NamedTuple):
    """What a process uses: percent of the card, KB of its memory."""

    utilization: float
    memory: int


class Nvml:
    """The library. Raises NotHereError whenever it can't be used, or no longer."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NotHereError(f"NVML: the package nvidia-ml-py is missing: {error}") from None
        self.binding: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NotHereError(f"NVML: {error}") from None
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
        }
        self._devices: dict[tuple[int, int], Device] = {}

    def close(self) -> None:
        """Shut the library down."""
        self.binding.nvmlShutdown()

    def driver(self) -> str:
        """Give the version of the driver; empty if it can't be told."""
        return Device(self, None).text("nvmlSystemGetDriverVersion")

    def devices(self) -> list[Device | None]:
        """Give the cards by index, None for one that can't be reached."""
        try:
            count = self.binding.nvmlDeviceGetCount()
        except self.binding.NVMLError as error:
            raise NotHereError(f"NVML: {error}") from None
        return [
            self._device((index, -1), "nvmlDeviceGetHandleByIndex", index) for index in range(count)
        ]

    def instances(self, index: int, device: Device) -> list[Device]:
        """Give the instances of the card `index`; none unless it is in MIG mode."""
        mode = device.ask("nvmlDeviceGetMigMode")
        if mode is None or mode[0] != self.binding.NVML_DEVICE_MIG_ENABLE:
            return []
        # Of these numbers, those that have no instance are not found.
        found = [
            self._device(
                (index, number), "nvmlDeviceGetMigDeviceHandleByIndex", device.handle, number
            )
            for number in range(device.number("nvmlDeviceGetMaxMigDeviceCount"))
        ]
        return [instance for instance in found if instance is not None]

    def is_unsupported(self, error: Any, *, vital: bool) -> bool:
        """Tell what a card never tells from what it can't tell now.

        Raises LostError if the card is lost, or fails to tell what is vital.
        """
        code = error.value
        if code in self._unusable:
            raise NotHereError(f"NVML: {error}") from None
        if code in self._unsupported:
            return True
        if vital or code in self._lost:
            raise CardLostError from None
        return False

    def _device(self, place: tuple[int, int], function: str, *arguments: Any) -> Device | None:
        """Give the device whose handle a function gives, the same object while it is the same."""
        try:
            handle = getattr(self.binding, function)(*arguments)
        except self.binding.NVMLError as error:
            if error.value in self._unusable:
                raise NotHereError(f"NVML: {error}") from None
            return None
        known = self._devices.get(place)
        if known is None or known.address != handle_address(handle):
            known = self._devices[place] = Device(self, handle)
        return known


class Device:
    """A card, or an instance of one. All methods raise LostError if it is lost."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self.handle = handle
        self._nvml = nvml
        self._unsupported: set[str] = set()
        self._seen = 0
        self._readings = 0

    @property
    def address(self) -> int | None:
        """Where the library keeps the device."""
        return handle_address(self.handle)

    def ask(self, name: str, *arguments: Any, key: str = "", vital: bool = False) -> Any:
        """Call a function; None if the card or the library can't tell.

        What is not supported (by `form`, else by `name`) is not asked for again for a while.
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
        """Ask for a number; 0 if it can't be told."""
        key = f"{name} {arguments[0]}" if arguments else name
        return self.ask(name, *arguments, key=key) or 0

    def text(self, name: str) -> str:
        """Ask for a text; empty if it can't be told."""
        return as_text(self.ask(name))

    def bus_id(self) -> str:
        """Ask for the address of PCI; empty if it can't be told."""
        info = self.ask("nvmlDeviceGetPciInfo")
        try:
            return "" if info is None else as_text(info.busId)
        except UnicodeDecodeError:
            return ""

    def watts(self, name: str) -> int:
        """Ask for a power, which NVML gives in milliwatts."""
        return as_watts(self.number(name))

    def memory(self) -> CardMemory:
        """Ask for the memory; a card that does not answer even this is lost."""
        name = "nvmlDeviceGetMemoryInfo"
        version = getattr(self._nvml.binding, "nvmlMemory_v2", None)
        # The first version counts as used what the driver holds back.
        memory = version and self.ask(name, version, key=f"{name}_v2", vital=True)
        memory = memory or self.ask(name, vital=True)
        return (
            CardMemory()
            if memory is None
            else CardMemory(memory.used // 1024, memory.total // 1024)
        )

    def temperature(self) -> int:
        """Ask for degrees Celsius, which the older function gives as if they had no sign."""
        sensor = self._nvml.binding.NVML_TEMPERATURE_GPU
        signed = self.ask("nvmlDeviceGetTemperatureV", sensor)
        if signed is not None:
            return int(signed)
        degrees = self.number("nvmlDeviceGetTemperature", sensor)
        return degrees - (1 << 32) if degrees >= 1 << 31 else degrees

    def performance_state(self) -> int:
        """Ask for the state P0 to P15 as ExtendedUint: 0 unknown, n + 2 for Pn."""
        state = self.ask("nvmlDeviceGetPerformanceState")
        return state + 2 if state is not None and 0 <= state <= _LARGEST_PERFORMANCE_STATE else 0

    def processes(self) -> dict[int, ProcessUse]:
        """Give what each process uses: those that compute, that draw, and those of MPS.

        One that computes and draws is in both lists, with the same memory. Counts as a reading:
        utilisation is that since the one before.
        """
        self._readings += 1
        if self._readings % _ASK_AGAIN == 0:
            self._unsupported.clear()  # the card's mode may have changed
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
        """Percent of the card by process since the last reading.

        The driver averages over what its buffer holds since the time stamp it is given; at the
        first reading over all of it. Now and then it gives entries that mean nothing.
        """
        since = self._seen
        rates: dict[int, list[int]] = {}
        for sample in self.ask("nvmlDeviceGetProcessUtilization", since) or ():
            if sample.pid and sample.smUtil <= _LARGEST_PERCENT and sample.timeStamp > since:
                rates.setdefault(sample.pid, []).append(sample.smUtil)
                self._seen = max(self._seen, sample.timeStamp)
        return {pid: round(sum(values) / len(values), 1) for pid, values in rates.items()}


def handle_address(handle: Any) -> int | None:
    """Return the address that a handle of the library stands for."""
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value


def as_text(value: Any) -> str:
    """Give a text of NVML, which bindings give as bytes or as a string."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def as_watts(milliwatts: int) -> int:
    """Give watts, rounded."""
    return (milliwatts + 500) // 1000
