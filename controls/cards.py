"""Controls of cards: `nvml.*` (clocks, power and ECC of NVIDIA's), `amd_gpu.*` (AMD's power cap).

NVIDIA's library may hang or die, so it runs in a helper process. The helper starts only if the
driver lists cards. AMD's cards are in the kernel's hwmon, and LIKWID has no controls for them: the
names follow its `nvml.*`. Source: Documentation/gpu/amdgpu/thermal.rst of Linux.
"""

from __future__ import annotations

import re
import threading
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import msgspec

from ccagent.controls.control import Control, ControlClass, Feature, Limits, list_names
from ccagent.controls.kernel_files import (
    MICRO,
    FileFeature,
    KernelFile,
    find_files,
    find_power_range,
    list_settable,
)
from ccagent.controls.nvml_process import VALUES, Answer, Question
from ccagent.errors import CcagentError, ControlError
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ccagent.controls.control import Kind
    from ccagent.machine.helper import Helper
    from ccagent.machine.node import Node

_NVIDIA_DRIVER = ("sys/bus/pci/drivers/nvidia", "proc/driver/nvidia/gpus")
_TARGET = "ccagent.controls.nvml_process:main"
_TIME_LIMIT = 20.0
_FIRST_ANSWER = 15.0
_ANSWER = 0.7

_PCI = "sys/bus/pci/devices"
_PCI_NAME = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_HWMON = re.compile(r"hwmon[0-9]{1,4}", re.ASCII)
_AMD_VENDOR = "0x1002"

_ADDRESS = re.compile(
    r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])", re.ASCII
)
_INDEX = re.compile(r"[0-9]{1,4}", re.ASCII)


def find_card(number: str, addresses: Sequence[str]) -> str | None:
    """Return the address of a card from its index, or from its address in any form."""
    if _INDEX.fullmatch(number):
        return addresses[int(number)] if int(number) < len(addresses) else None
    wanted = _parse_address(number)
    if wanted is None:
        return None
    return next((each for each in addresses if _parse_address(each) == wanted), None)


def _parse_address(address: str) -> tuple[int, ...] | None:
    """Return the numbers of a PCI address; None for an invalid one."""
    match = _ADDRESS.fullmatch(address)
    return None if match is None else tuple(int(part or "0", 16) for part in match.groups())


class NvmlLibrary:
    """The helper process. Methods raise CcagentError for errors of the library."""

    def __init__(self, node: Node) -> None:
        self._helper: Helper = node.helper("NVML", _TARGET, (), time_limit=_TIME_LIMIT)
        self._lock = threading.Lock()

    def ask(self, question: Question, seconds: float = _ANSWER) -> Answer:
        """Send a question, and wait for the answer for at most `seconds`."""
        if not self._lock.acquire(timeout=seconds):
            raise ControlError("NVML: an earlier request has no answer yet")
        try:
            return self._ask(question, seconds)
        finally:
            self._lock.release()

    def _ask(self, question: Question, seconds: float) -> Answer:
        # A late answer belongs to an earlier question.
        if self._helper.is_asked and self._helper.answer(0.0) is None:
            raise ControlError("NVML: an earlier request has no answer yet")
        self._helper.ask(msgspec.msgpack.encode(question))
        answer = self._helper.answer(seconds)
        if answer is None:
            raise ControlError(f"NVML: no answer within {seconds:g} s")
        decoded = msgspec.msgpack.decode(answer, type=Answer)
        if decoded.error:
            raise ControlError(f"NVML: {decoded.error}")
        return decoded


class NvmlFeature(Feature):
    """A value of each card."""

    tolerance = 0.001
    is_quick = False

    def __init__(self, library: NvmlLibrary, control: Control, cards: Sequence[str]) -> None:
        self.control = control
        self._library = library
        self.devices = cards

    def find_device(self, number: str) -> str | None:
        """Return the address of a card from its index or address."""
        return find_card(number, self.devices)

    def read(self, device: str) -> str:
        """Return the library's value. Raise CcagentError."""
        return self._library.ask(Question("read", self.control.name, device)).value

    def write(self, device: str, text: str) -> None:
        """Set a value through the library. Raise CcagentError."""
        self._library.ask(Question("write", self.control.name, device, text))

    def limits(self, device: str) -> Limits:
        """Return the limits of the card. Raise CcagentError."""
        decoded = self._library.ask(Question("limits", self.control.name, device))
        return Limits(decoded.minimum, decoded.maximum, decoded.choices)


class NvmlControls(ControlClass):
    """Clocks, power and ECC of NVIDIA's cards."""

    category = "nvml"
    needs: ClassVar[str] = "cards of NVIDIA, its driver and the package nvidia-ml-py"
    settable: ClassVar[Mapping[str, Kind]] = {
        f"nvml.{value.name}": value.kind for value in VALUES if value.is_writable
    }

    def __init__(self, library: NvmlLibrary | None = None) -> None:
        self._library = library

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the controls of the first card."""
        library = self._library
        if library is None:
            if not any(map(node.exists, _NVIDIA_DRIVER)):
                return
            library = self._library = NvmlLibrary(node)
        try:
            listed = library.ask(Question("list"), _FIRST_ANSWER)
        except CcagentError as error:
            logger.warning("controls nvml: %s", error)
            return
        for value in VALUES:
            if value.name in listed.names and listed.cards:
                control = Control(
                    "nvml", value.name, "nvidia_gpu", value.kind, value.description, value.unit,
                    is_writable=value.is_writable,
                )  # fmt: skip
                yield NvmlFeature(library, control, listed.cards)


class _AmdFeature(FileFeature):
    def find_device(self, number: str) -> str | None:
        """Return the address of a card from its index or address."""
        return find_card(number, self.devices)


_AMD_VALUES = [
    KernelFile(name, file, "real", text, "W", limits, MICRO, 0.02, _AmdFeature)
    for name, file, text, limits in (
        ("power_limit_cur", "power1_cap", "Power limit",
         partial(find_power_range, "power1_cap_min", "power1_cap_max")),
        ("power_limit_min", "power1_cap_min", "Lowest power limit", None),
        ("power_limit_max", "power1_cap_max", "Highest power limit", None),
        ("power_limit_default", "power1_cap_default", "Power limit at the start", None),
        ("power_usage", "power1_average", "Power", None),
    )
]  # fmt: skip


class AmdGpu(ControlClass):
    """Power and power cap of AMD's cards."""

    category = "amd_gpu"
    needs: ClassVar[str] = "cards of AMD with the driver amdgpu"
    settable = list_settable("amd_gpu", _AMD_VALUES)

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features of cards with a power sensor. Device ids are PCI addresses."""
        cards: dict[str, str] = {}
        for match in list_names(node, _PCI, _PCI_NAME):
            path = f"{_PCI}/{match[0]}"
            if node.read_text(f"{path}/vendor").lower() != _AMD_VENDOR:
                continue
            for sensor in list_names(node, f"{path}/hwmon", _HWMON):
                if node.exists(f"{path}/hwmon/{sensor[0]}/power1_cap"):
                    cards[match[0].upper()] = f"{path}/hwmon/{sensor[0]}"
        return find_files(node, "amd_gpu", "amd_gpu", dict(sorted(cards.items())), _AMD_VALUES)
