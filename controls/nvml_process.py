"""The process with NVML for `nvml.*`. It lists, reads and writes values of cards.

Source: NVML API reference, "Device Queries" and "Device Commands". In NVML power is in mW, energy
in mJ, and clocks are set in pairs of memory and graphics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

_GRAPHICS, _SM, _MEMORY = 0, 1, 2
_CURRENT, _PENDING = 0, 1
_MILLI = 1000


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A question to NVML. card: its PCI address."""

    kind: Literal["list", "read", "write", "limits"]
    name: str = ""
    card: str = ""
    value: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer. `list`: names and cards; `read`: value; `limits`: range; or the error."""

    names: list[str] = []
    cards: list[str] = []
    value: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] | None = None
    error: str = ""


class CardValues:
    """The values of one card by name. Methods raise the binding's exceptions."""

    def __init__(self, binding: Any, handle: Any) -> None:
        self._binding = binding
        self._handle = handle
        self._readers: dict[str, Callable[[], str]] = {
            "power_limit_cur": lambda: self._watts("nvmlDeviceGetPowerManagementLimit"),
            "power_limit_default": lambda: self._watts("nvmlDeviceGetPowerManagementDefaultLimit"),
            "power_limit_min": lambda: _watts(self._power_range()[0]),
            "power_limit_max": lambda: _watts(self._power_range()[1]),
            "power_limit_enf": lambda: self._watts("nvmlDeviceGetEnforcedPowerLimit"),
            "power_usage": lambda: self._watts("nvmlDeviceGetPowerUsage"),
            "energy": lambda: self._watts("nvmlDeviceGetTotalEnergyConsumption"),
            "gfx_clock_cur": lambda: self._number("nvmlDeviceGetClockInfo", _GRAPHICS),
            "gfx_clock_app_target": lambda: self._app_clock(_GRAPHICS),
            "gfx_clock_app_default": lambda: self._number(
                "nvmlDeviceGetDefaultApplicationsClock", _GRAPHICS
            ),
            "gfx_clock_boost_max": lambda: self._number("nvmlDeviceGetMaxClockInfo", _GRAPHICS),
            "sm_clock_cur": lambda: self._number("nvmlDeviceGetClockInfo", _SM),
            "dram_clock_cur": lambda: self._number("nvmlDeviceGetClockInfo", _MEMORY),
            "dram_clock_app_target": lambda: self._app_clock(_MEMORY),
            "dram_clock_app_default": lambda: self._number(
                "nvmlDeviceGetDefaultApplicationsClock", _MEMORY
            ),
            "ecc_enabled_cur": lambda: self._ecc(_CURRENT),
            "ecc_enabled_pend": lambda: self._ecc(_PENDING),
            "perf_state": lambda: self._number("nvmlDeviceGetPerformanceState"),
            "gpu_usage": lambda: str(self._call("nvmlDeviceGetUtilizationRates").gpu),
            "temp_gpu_cur": lambda: self._number("nvmlDeviceGetTemperature", 0),
        }

    def names(self) -> list[str]:
        """Return the names of the card's values."""
        found: list[str] = []
        for name, read in self._readers.items():
            try:
                read()
            except (self._binding.NVMLError, AttributeError):
                continue
            found.append(name)
        return found

    def read(self, name: str) -> str:
        """Return a value in LIKWID's format."""
        return self._readers[name]()

    def write(self, name: str, value: str) -> None:
        """Set a value."""
        match name:
            case "power_limit_cur":
                self._call("nvmlDeviceSetPowerManagementLimit", round(float(value) * _MILLI))
            case "gfx_clock_app_target":
                memory = int(self._app_clock(_MEMORY))
                self._call("nvmlDeviceSetApplicationsClocks", memory, int(value))
            case "dram_clock_app_target":
                graphics = int(self._app_clock(_GRAPHICS))
                self._call("nvmlDeviceSetApplicationsClocks", int(value), graphics)
            case "ecc_enabled_pend":
                self._call("nvmlDeviceSetEccMode", int(value))
            case _:
                raise KeyError(name)

    def limits(self, name: str) -> Answer:
        """Return the limits of a value."""
        match name:
            case "power_limit_cur":
                low, high = self._power_range()
                return Answer(minimum=low / _MILLI, maximum=high / _MILLI)
            case "gfx_clock_app_target":
                memory = int(self._app_clock(_MEMORY))
                clocks = self._call("nvmlDeviceGetSupportedGraphicsClocks", memory)
                return Answer(choices=tuple(map(str, clocks)))
            case "dram_clock_app_target":
                clocks = self._call("nvmlDeviceGetSupportedMemoryClocks")
                return Answer(choices=tuple(map(str, clocks)))
            case _:
                return Answer()

    def _call(self, function: str, *arguments: Any) -> Any:
        return getattr(self._binding, function)(self._handle, *arguments)

    def _number(self, function: str, *arguments: Any) -> str:
        return str(int(self._call(function, *arguments)))

    def _watts(self, function: str) -> str:
        return _watts(self._call(function))

    def _power_range(self) -> tuple[int, int]:
        low, high = self._call("nvmlDeviceGetPowerManagementLimitConstraints")
        return int(low), int(high)

    def _app_clock(self, clock: int) -> str:
        return self._number("nvmlDeviceGetApplicationsClock", clock)

    def _ecc(self, which: int) -> str:
        return str(int(self._call("nvmlDeviceGetEccMode")[which]))


class Cards:
    """The cards in the library, by PCI address."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        binding.nvmlInit()
        self._cards: dict[str, CardValues] = {}
        for index in range(binding.nvmlDeviceGetCount()):
            handle = binding.nvmlDeviceGetHandleByIndex(index)
            address = binding.nvmlDeviceGetPciInfo(handle).busId
            text = address.decode("ascii", "replace") if isinstance(address, bytes) else address
            self._cards[str(text).upper()] = CardValues(binding, handle)

    def answer(self, question: Question) -> Answer:
        """Return the answer to a question. An error is also an answer."""
        if question.kind == "list":
            names = next(iter(self._cards.values())).names() if self._cards else []
            return Answer(names=names, cards=list(self._cards))
        card = self._cards.get(question.card)
        if card is None:
            return Answer(error=f"there is no card {question.card}")
        try:
            if question.kind == "read":
                return Answer(value=card.read(question.name))
            if question.kind == "limits":
                return card.limits(question.name)
            card.write(question.name, question.value)
        except self._binding.NVMLError as error:
            return Answer(error=str(error))
        except (KeyError, ValueError, AttributeError) as error:
            return Answer(error=f"{type(error).__name__}: {error}")
        return Answer()


def main(descriptor: int) -> None:
    """Answer questions until the parent closes the socket."""
    from ccagent.machine.helper import serve

    cards: Cards | None = None
    problem = ""
    try:
        import pynvml

        cards = Cards(pynvml)
    except ImportError as error:
        problem = f"the package nvidia-ml-py is missing: {error}"
    except Exception as error:  # noqa: BLE001 - whatever a binding does, it is an answer
        problem = f"{type(error).__name__}: {error}"

    def reply(question: bytes) -> bytes:
        if cards is None:
            return msgspec.msgpack.encode(Answer(error=problem))
        return msgspec.msgpack.encode(cards.answer(msgspec.msgpack.decode(question, type=Question)))

    serve(descriptor, reply)


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / _MILLI:f}"
