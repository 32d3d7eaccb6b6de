"""Controls with kind of value and devices, the catalogue of a machine's, and its hwthreads.

The topology is in cc-node-controller's JSON format.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from ccagent.errors import CcagentError, ControlError
from ccagent.log import logger
from ccagent.machine.cpus import CPUS, read_topology_id
from ccagent.machine.cpus import read_siblings as read_core
from ccagent.machine.parsed import parse_or
from ccagent.machine.procfs.system import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
NO_DEVICE = "there is no device"

_INTEGER = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_REAL = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,6})?", re.ASCII)
_BOOLEANS = {"0": "0", "1": "1", "false": "0", "true": "1"}
_SHOWN = 60

_CPU = re.compile(r"cpu([0-9]{1,6})", re.ASCII)
_NODES = "sys/devices/system/node"
_NODE = re.compile(r"node([0-9]{1,6})", re.ASCII)


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
    """A family of controls. Classes are independent of the way of requests."""

    category: ClassVar[str]
    needs: ClassVar[str]
    """Requirements on the machine, for the doctor."""
    settable: ClassVar[Mapping[str, Kind]] = {}
    """Kinds of the controls that can be set on some machine, by their full names."""

    @abstractmethod
    def find_features(self, node: Node) -> Iterable[Feature]:
        """Return the features of this machine. Must not raise without any."""


class ListedControl(msgspec.Struct, frozen=True):
    """One entry of the answer to `controls`."""

    category: str
    name: str
    device_type: str
    description: str
    methods: str


class Catalogue:
    """The features of all classes. Names are looked up, and never become part of a path."""

    def __init__(self, features: Iterable[Feature]) -> None:
        self._features: dict[str, Feature] = {}
        self._by_name: dict[str, list[Feature]] = {}
        for feature in features:
            control = feature.control
            if control.full_name not in self._features:
                self._features[control.full_name] = feature
                bare = () if "." in control.name else (control.name,)
                for name in (control.full_name, *bare):
                    self._by_name.setdefault(name, []).append(feature)
        self._categories = {feature.control.category for feature in self}

    def __iter__(self) -> Iterator[Feature]:
        return iter(self._features.values())

    def __len__(self) -> int:
        return len(self._features)

    def has_category(self, name: str) -> bool:
        """Return whether this machine has controls of a category."""
        return name in self._categories

    def find(self, name: str) -> Feature:
        """Return a control by `category.name` or by a unique name. Raise ControlError."""
        features = self._by_name.get(name, [])
        if not features:
            raise ControlError("there is no such control on this node")
        if len(features) > 1:
            names = ", ".join(feature.control.full_name for feature in features)
            raise ControlError(f"the name is not unique: {names}")
        return features[0]

    def listing(self) -> str:
        """Return the answer to `controls`: JSON."""
        listed: list[ListedControl] = []
        for feature in self:
            control = feature.control
            unit = f" [{control.unit}]" if control.unit else ""
            methods = "ALL" if control.is_writable else "GET"
            row = (control.category, control.name, control.device_type)
            listed.append(ListedControl(*row, f"{control.description}{unit}", methods))
        return msgspec.json.encode({"controls": listed}).decode()


def check_device(feature: Feature, device_type: DeviceType | None, number: str) -> str:
    """Return the id of the device in a request. Raise ControlError if it does not exist."""
    control = feature.control
    if device_type != control.device_type:
        raise ControlError(f"{control.full_name} is of type {control.device_type}")
    if device_type == "node":
        number = NODE_DEVICE
    device = feature.find_device(number)
    if device is None:
        raise ControlError(f"{NO_DEVICE} {control.device_type}/{number[:40]!a} with it")
    return device


def find_features(node: Node, classes: Sequence[ControlClass]) -> Iterator[Feature]:
    """Return the features of all classes. A failing class is skipped and logged."""
    for control_class in classes:
        try:
            yield from control_class.find_features(node)
        except CcagentError as error:
            logger.warning("controls %s: %s", control_class.category, error)


def real_text(value: float) -> str:
    """Return a real number in LIKWID's format."""
    return f"{value:f}"


def shortened(text: str) -> str:
    """Return a text of a request for an error message, printable and of bounded length."""
    return ascii(text[:_SHOWN])


def list_names(node: Node, path: str, form: re.Pattern[str]) -> list[re.Match[str]]:
    """Return the names in a directory that match a pattern, in natural order; none without it.

    Only these names of the machine become part of a path.
    """
    matches = [match for name in node.list_names(path) if (match := form.fullmatch(name))]
    return sorted(matches, key=lambda match: [int(n) for n in re.findall(r"[0-9]+", match[0])])


def list_cpus(node: Node) -> list[int]:
    """Return the online hwthreads. A hwthread without the file can't be switched off."""
    numbers = [int(match[1]) for match in list_names(node, CPUS, _CPU)]
    return [n for n in numbers if node.read_text(f"{CPUS}/cpu{n}/online") in {"", "1"}]


def read_siblings(node: Node, number: int) -> list[int]:
    """Return the hwthreads of the core of a hwthread."""
    try:
        return read_core(node, number) or [number]
    except CcagentError:
        return [number]


def read_id(node: Node, number: int, name: str) -> int:
    """Return an id of a hwthread: of its socket, die or core; 0 if the kernel does not know it."""
    try:
        return max(0, read_topology_id(node, number, name))
    except CcagentError:
        return 0


class Hwthread(msgspec.Struct, frozen=True):
    """One hwthread. core_id: number in its socket. smt_id: number in its core."""

    cpu_id: int
    smt_id: int
    core_cpu_list: list[int]
    core_id: int
    socket_id: int
    die_id: int
    numa_id: int


class CpuInfo(msgspec.Struct, frozen=True):
    """Counts of the machine."""

    num_hwthreads: int
    smt_width: int
    num_sockets: int
    num_dies: int
    num_cores: int
    num_numa_domains: int


class Topology(msgspec.Struct, frozen=True):
    """The answer to `topology`."""

    hwthreads: list[Hwthread]
    cpu_info: CpuInfo


def read_topology(node: Node) -> Topology:
    """Read the topology of the online hwthreads."""
    domains = {
        int(match[1]): parse_or(node, f"{_NODES}/{match[0]}/cpulist", parse_cpu_list, list[int]())
        for match in list_names(node, _NODES, _NODE)
    }
    numa = {cpu: domain for domain, cpus in domains.items() for cpu in cpus}
    online = list_cpus(node)
    threads = [_hwthread(node, cpu, numa, set(online)) for cpu in online]
    return Topology(
        threads,
        CpuInfo(
            num_hwthreads=len(threads),
            smt_width=max((len(t.core_cpu_list) for t in threads), default=0),
            num_sockets=len({t.socket_id for t in threads}),
            num_dies=len({(t.socket_id, t.die_id) for t in threads}),
            num_cores=len({tuple(t.core_cpu_list) for t in threads}),
            # Without those that have memory alone: a GPU's, CXL.
            num_numa_domains=len({t.numa_id for t in threads}),
        ),
    )


def _hwthread(node: Node, cpu: int, numa: dict[int, int], online: set[int]) -> Hwthread:
    siblings = [number for number in read_siblings(node, cpu) if number in online] or [cpu]
    return Hwthread(
        cpu_id=cpu,
        smt_id=siblings.index(cpu) if cpu in siblings else 0,
        core_cpu_list=siblings,
        core_id=read_id(node, cpu, "core_id"),
        socket_id=read_id(node, cpu, "physical_package_id"),
        die_id=read_id(node, cpu, "die_id"),
        numa_id=numa.get(cpu, 0),
    )
