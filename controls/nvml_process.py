"""The process with NVML for `nvml.*`. It lists, reads and writes values of cards.

Source: NVML API reference, "Device Queries" and "Device Commands". In NVML power is in mW, energy
in mJ, and clocks are set in pairs of memory and graphics.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

_GRAPHICS, _SM, _MEMORY = 0, 1, 2
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


class NvmlValue(NamedTuple):
    """A value by LIKWID's name, and the function nvmlDevice... that returns it.

    Real values are in thousandths of the unit. part: number or name of the value in an answer with
    several.
    """

    name: str
    kind: Literal["integer", "real", "boolean"]
    unit: str
    description: str
    function: str
    arguments: tuple[int, ...] = ()
    is_writable: bool = False
    part: int | str = ""


VALUES = (
    NvmlValue("power_limit_cur", "real", "W", "Power limit",
              "GetPowerManagementLimit", is_writable=True),
    NvmlValue("power_limit_default", "real", "W", "Power limit at the start",
              "GetPowerManagementDefaultLimit"),
    NvmlValue("power_limit_min", "real", "W", "Lowest power limit",
              "GetPowerManagementLimitConstraints", part=0),
    NvmlValue("power_limit_max", "real", "W", "Highest power limit",
              "GetPowerManagementLimitConstraints", part=1),
    NvmlValue("power_limit_enf", "real", "W", "Power limit that is enforced",
              "GetEnforcedPowerLimit"),
    NvmlValue("power_usage", "real", "W", "Power", "GetPowerUsage"),
    NvmlValue("energy", "real", "J", "Energy", "GetTotalEnergyConsumption"),
    NvmlValue("gfx_clock_cur", "integer", "MHz", "Clock of graphics", "GetClockInfo", (_GRAPHICS,)),
    NvmlValue("gfx_clock_app_target", "integer", "MHz", "Application clock of graphics",
              "GetApplicationsClock", (_GRAPHICS,), is_writable=True),
    NvmlValue("gfx_clock_app_default", "integer", "MHz", "Default application clock of graphics",
              "GetDefaultApplicationsClock", (_GRAPHICS,)),
    NvmlValue("gfx_clock_boost_max", "integer", "MHz", "Highest clock of graphics",
              "GetMaxClockInfo", (_GRAPHICS,)),
    NvmlValue("sm_clock_cur", "integer", "MHz", "Clock of the multiprocessors",
              "GetClockInfo", (_SM,)),
    NvmlValue("dram_clock_cur", "integer", "MHz", "Clock of the memory",
              "GetClockInfo", (_MEMORY,)),
    NvmlValue("dram_clock_app_target", "integer", "MHz", "Application clock of the memory",
              "GetApplicationsClock", (_MEMORY,), is_writable=True),
    NvmlValue("dram_clock_app_default", "integer", "MHz", "Default application clock of the memory",
              "GetDefaultApplicationsClock", (_MEMORY,)),
    NvmlValue("ecc_enabled_cur", "boolean", "", "ECC now", "GetEccMode", part=0),
    NvmlValue("ecc_enabled_pend", "boolean", "", "ECC after the next reset",
              "GetEccMode", is_writable=True, part=1),
    NvmlValue("perf_state", "integer", "", "Performance state", "GetPerformanceState"),
    NvmlValue("gpu_usage", "integer", "%", "Utilization", "GetUtilizationRates", part="gpu"),
    NvmlValue("temp_gpu_cur", "integer", "degrees C", "Temperature", "GetTemperature", (0,)),
)  # fmt: skip
_BY_NAME = {value.name: value for value in VALUES}


class CardValues:
    """The values of one card by name. Methods raise the binding's exceptions."""

    def __init__(self, binding: Any, handle: Any) -> None:
        self._binding = binding
        self._handle = handle

    def names(self) -> list[str]:
        """Return the names of the card's values."""
        names: list[str] = []
        for value in VALUES:
            try:
                self.read(value.name)
            except (self._binding.NVMLError, AttributeError):
                continue
            names.append(value.name)
        return names

    def read(self, name: str) -> str:
        """Return a value in LIKWID's format."""
        row = _BY_NAME[name]
        value = self._call(row.function, *row.arguments)
        if isinstance(row.part, int):
            value = value[row.part]
        elif row.part:
            value = getattr(value, row.part)
        return f"{value / _MILLI:f}" if row.kind == "real" else str(int(value))

    def write(self, name: str, value: str) -> None:
        """Set a value."""
        match name:
            case "power_limit_cur":
                self._call("SetPowerManagementLimit", round(float(value) * _MILLI))
            case "gfx_clock_app_target":
                memory = int(self.read("dram_clock_app_target"))
                self._call("SetApplicationsClocks", memory, int(value))
            case "dram_clock_app_target":
                graphics = int(self.read("gfx_clock_app_target"))
                self._call("SetApplicationsClocks", int(value), graphics)
            case "ecc_enabled_pend":
                self._call("SetEccMode", int(value))
            case _:
                raise KeyError(name)

    def limits(self, name: str) -> Answer:
        """Return the limits of a value."""
        match name:
            case "power_limit_cur":
                low, high = (float(self.read(f"power_limit_{end}")) for end in ("min", "max"))
                return Answer(minimum=low, maximum=high)
            case "gfx_clock_app_target":
                memory = int(self.read("dram_clock_app_target"))
                clocks = self._call("GetSupportedGraphicsClocks", memory)
                return Answer(choices=tuple(map(str, clocks)))
            case "dram_clock_app_target":
                clocks = self._call("GetSupportedMemoryClocks")
                return Answer(choices=tuple(map(str, clocks)))
            case _:
                return Answer()

    def _call(self, function: str, *arguments: Any) -> Any:
        return getattr(self._binding, f"nvmlDevice{function}")(self._handle, *arguments)


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
