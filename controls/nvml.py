"""Controls `nvml.*`: clocks, power and ECC of NVIDIA's cards, through a separate process.

The vendor's library may hang or die, so it runs in a helper process. The helper starts only if the
driver lists cards.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

import msgspec

from ccagent.controls.control import Control, ControlClass, Feature, Limits
from ccagent.controls.nvml_process import VALUES, Answer, Question
from ccagent.controls.topology import find_card
from ccagent.errors import CcagentError, ControlError
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ccagent.controls.control import Kind
    from ccagent.machine.helper import Helper
    from ccagent.machine.node import Node

_DRIVER = ("sys/bus/pci/drivers/nvidia", "proc/driver/nvidia/gpus")
_TARGET = "ccagent.controls.nvml_process:main"
_TIME_LIMIT = 20.0
_FIRST_ANSWER = 15.0
_ANSWER = 0.7


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
            if not any(map(node.exists, _DRIVER)):
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
