"""Base classes of controls: name, kind of value, devices; controls in files of the kernel."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import msgspec

from ccagent.errors import ControlError, NotHereError, UnparsableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ccagent.machine.node import Node


Kind = Literal["integer", "real", "boolean", "choice", "text"]
"""Kind of a control's value. `choice`: one of the words offered by the machine."""

DeviceType = Literal[
    "hwthread", "core", "LLC", "numa", "die", "socket", "node", "nvidia_gpu", "amd_gpu"
]
"""LIKWID's device types, as in the tag `type`."""

DEVICE_TYPES: dict[str, DeviceType] = {
    "hwthread": "hwthread", "core": "core", "LLC": "LLC", "llc": "LLC", "numa": "numa",
    "memoryDomain": "numa", "die": "die", "socket": "socket", "node": "node",
    "nvidia_gpu": "nvidia_gpu", "amd_gpu": "amd_gpu",
}  # fmt: skip
"""Types by the word in a request: LIKWID's words, and different words of the specification."""

NODE_DEVICE = "0"
"""The only device of type `node`."""

_INTEGER = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_REAL = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,6})?", re.ASCII)
_BOOLEANS = {"0": "0", "1": "1", "false": "0", "true": "1"}
_SHOWN = 60


class Control(msgspec.Struct, frozen=True):
    """One control in the list `controls`. Values are texts in LIKWID's formats."""

    category: str
    name: str
    device_type: DeviceType
    kind: Kind
    description: str
    unit: str = ""
    is_writable: bool = False

    @property
    def full_name(self) -> str:
        """The unique name on a machine: `category.name`."""
        return f"{self.category}.{self.name}"

    def parse(self, text: str) -> str:
        """Return the canonical form of a requested value. Raise ControlError.

        Only the result of this function is ever written, never the text of a request.
        """
        match self.kind:
            case "integer" if _INTEGER.fullmatch(text):
                return str(int(text))
            case "real" if _REAL.fullmatch(text):
                return real_text(float(text))
            case "boolean" if text.lower() in _BOOLEANS:
                return _BOOLEANS[text.lower()]
            case "choice" if text and text.isascii() and text.isprintable() and " " not in text:
                return text
            case "text":
                return text
            case _:
                wanted = {
                    "integer": "a whole number",
                    "real": "a number with 6 decimals at most",
                    "boolean": "0 or 1",
                }
                expected = wanted.get(self.kind, "one word")
                raise ControlError(f"{self.full_name}: {shortened(text)} is not {expected}")


class Limits(msgspec.Struct, frozen=True):
    """The machine's valid values for a device; None if unknown."""

    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] | None = None

    def refusal(self, text: str) -> str:
        """Return the reason why a canonical value is out of range, or ""."""
        if self.choices is not None and text not in self.choices:
            return f"{shortened(text)} is none of {', '.join(self.choices) or 'no choices'}"
        if self.minimum is not None and float(text) < self.minimum:
            return f"{text} is below {self.minimum:g}"
        if self.maximum is not None and float(text) > self.maximum:
            return f"{text} is above {self.maximum:g}"
        return ""


NO_LIMITS = Limits()
"""The machine takes every value of the kind."""
MICRO = 1_000_000


class Feature(ABC):
    """A control with its devices on this machine.

    Device ids come from the machine's list of devices. `read` and `write` accept only these ids.
    """

    control: Control
    devices: Sequence[str]
    tolerance: float = 0.0
    """Maximum relative rounding of a real value by the machine."""
    is_quick = True
    """Whether `read` is only the read of a file of the kernel, without another process."""

    @abstractmethod
    def read(self, device: str) -> str:
        """Return the current value as LIKWID's text. Raise CcagentError if it can't be read."""

    def write(self, device: str, text: str) -> None:
        """Write a canonical value. Raise CcagentError if that fails."""
        del device, text
        raise ControlError(f"{self.control.full_name}: it can only be read")

    def limits(self, device: str) -> Limits:
        """Return the machine's current limits for this device. Raise CcagentError."""
        del device
        return NO_LIMITS

    def resource(self, device: str) -> str:
        """Return the name of the written register or file. Devices may share it."""
        return f"{self.control.full_name}@{device}"

    def find_device(self, number: str) -> str | None:
        """Return the id of a device from the tag `type-id`; None for an unknown device."""
        return number if number in self.devices else None

    def matches(self, wanted: str, value: str) -> bool:
        """Return whether a value read back equals the written one."""
        if wanted == value:
            return True
        if self.control.kind != "real":
            return False
        try:
            return abs(float(wanted) - float(value)) <= self.tolerance * abs(float(wanted)) + 1e-6
        except ValueError:
            return False


class ControlClass(ABC):
    """A family of controls, one file each. Classes are independent of the way of requests."""

    category: ClassVar[str]
    needs: ClassVar[str]
    """Requirements on the machine, for the doctor."""
    settable: ClassVar[Mapping[str, Kind]] = {}
    """Kinds of the controls that can be set on some machine, by their full names."""

    @abstractmethod
    def find_features(self, node: Node) -> Iterable[Feature]:
        """Return the features of this machine. Must not raise without any."""


def real_text(value: float) -> str:
    """Return a real number in LIKWID's format."""
    return f"{value:f}"


def shortened(text: str) -> str:
    """Return a text of a request for an error message, printable and of bounded length."""
    return ascii(text[:_SHOWN])


_NUMBER = re.compile(rb"-?[0-9]{1,20}")
_BRACKETS = re.compile(r"\[([^\]]*)\]")


class FileFeature(Feature):
    """A control with one file `DIRECTORY/FILE` per device.

    directories: by device id, from the machine's list of devices.
    """

    def __init__(
        self, node: Node, category: str, device_type: DeviceType, row: KernelFile,
        directories: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.control = Control(
            category, row.name, device_type, row.kind, row.description, row.unit,
            is_writable=row.limits is not None,
        )  # fmt: skip
        self.devices = tuple(directories)
        self.tolerance = row.tolerance
        self._node = node
        self._row = row
        self._directories = directories

    def read(self, device: str) -> str:
        """Return the value in the file. Raise CcagentError if it can't be read."""
        path = self._path(device)
        return self._parse(self._node.read_single(path), path)

    def write(self, device: str, text: str) -> None:
        """Write a value to the file. Raise CcagentError if that fails."""
        self._node.write_file(self._path(device), self._format(text))

    def limits(self, device: str) -> Limits:
        """Return the machine's current limits. Raise CcagentError."""
        limits = self._row.limits or NO_LIMITS
        return limits(self._node, self._directories[device]) if callable(limits) else limits

    def resource(self, device: str) -> str:
        """Return the path of the file without links: cpus share cpufreq policies through links."""
        return self._node.resolve(self._path(device))

    def _path(self, device: str) -> str:
        return f"{self._directories[device]}/{self._row.file}"

    def _parse(self, content: bytes, path: str) -> str:
        text = content.strip()
        if self.control.kind in {"integer", "real"}:
            if not _NUMBER.fullmatch(text):
                raise UnparsableError(f"/{path}: not a whole number: {text[:40]!r}")
            number = int(text)
            if self.control.kind == "integer":
                return str(number // self._row.scale)
            return real_text(number / self._row.scale)
        return text.decode("utf-8", "replace")

    def _format(self, text: str) -> bytes:
        match self.control.kind:
            case "integer":
                return str(int(text) * self._row.scale).encode()
            case "real":
                return str(round(float(text) * self._row.scale)).encode()
            case _:
                return text.encode()


class InvertedFeature(FileFeature):
    """A boolean with an inverted file: no_turbo."""

    def _parse(self, content: bytes, path: str) -> str:
        return _inverted(super()._parse(content, path), path)

    def _format(self, text: str) -> bytes:
        return _inverted(text, "").encode()


class BracketedFeature(FileFeature):
    """A file with all choices, and the current one in brackets: `always [madvise] never`.

    The choices in the file are the limits.
    """

    def limits(self, device: str) -> Limits:
        """Return the choices. Raise CcagentError."""
        text = self._node.read_single(self._path(device)).decode("utf-8", "replace")
        return Limits(choices=tuple(text.replace("[", "").replace("]", "").split()))

    def _parse(self, content: bytes, path: str) -> str:
        match = _BRACKETS.search(content.decode("utf-8", "replace"))
        if match is None:
            raise UnparsableError(f"/{path}: no choice in brackets: {content[:40]!r}")
        return match[1]


class KernelFile(NamedTuple):
    """A control in a file of each device's directory: a row in the table of a class.

    limits: of all devices, or a function that finds them in a device's directory; None if the
    control can only be read. scale: units of the file per unit of the control.
    """

    name: str
    file: str
    kind: Kind
    description: str
    unit: str = ""
    limits: Limits | Callable[[Node, str], Limits] | None = None
    scale: int = 1
    tolerance: float = 0.0
    form: type[FileFeature] = FileFeature


def list_settable(category: str, table: Iterable[KernelFile]) -> dict[str, Kind]:
    """Return the kinds of the controls of a table that can be set, by their full names."""
    return {f"{category}.{row.name}": row.kind for row in table if row.limits is not None}


def find_files(
    node: Node, category: str, device_type: DeviceType, directories: Mapping[str, str],
    table: Iterable[KernelFile],
) -> Iterator[Feature]:  # fmt: skip
    """Yield the features of rows whose file a device has."""
    for row in table:
        having = {d: path for d, path in directories.items() if node.exists(f"{path}/{row.file}")}
        if having:
            yield row.form(node, category, device_type, row, having)


def find_power_range(low: str, high: str, node: Node, directory: str) -> Limits:
    """Return the range in W of a power limit, without 0 W. low, high: files of its ends in uW."""
    least = read_integer(node, f"{directory}/{low}") or 0
    most = read_integer(node, f"{directory}/{high}")
    return Limits(max(least, 1) / MICRO, most / MICRO if most else None)


def read_integer(node: Node, path: str) -> int | None:
    """Return the whole number in a file; None without the file. Raise CcagentError."""
    try:
        text = node.read_single(path).strip()
    except NotHereError:
        return None
    return int(text) if _NUMBER.fullmatch(text) else None


def list_names(node: Node, path: str, form: re.Pattern[str]) -> list[re.Match[str]]:
    """Return the names in a directory that match a pattern, in natural order; none without it.

    Only these names of the machine become part of a path.
    """
    matches = [match for name in node.list_names(path) if (match := form.fullmatch(name))]
    return sorted(matches, key=lambda match: [int(n) for n in re.findall(r"[0-9]+", match[0])])


def _inverted(text: str, path: str) -> str:
    if text not in {"0", "1"}:
        raise UnparsableError(f"/{path}: neither 0 nor 1: {text[:40]!r}")
    return "1" if text == "0" else "0"
