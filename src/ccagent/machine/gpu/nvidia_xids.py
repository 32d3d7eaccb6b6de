"""Xid errors of NVIDIA's cards, delivered by the driver as events.

Source: NVML API reference, "Event Handling Methods".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.machine.gpu.nvml import handle_address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.gpu.nvml import Device

_MOST_EVENTS = 1000
"""Maximum number of events per reading. The next reading returns the rest."""


class Xids(NamedTuple):
    """Number of errors since the start of the watch, and the last error; 0: none."""

    errors: int = 0
    last: int = 0


class XidWatch:
    """Watches cards from the first reading on. Earlier errors are not counted."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self._events: Any = None
        self._watched: set[int | None] = set()
        self._found: dict[int | None, Xids] = {}

    def read(self, devices: Iterable[Device]) -> dict[int | None, Xids]:
        """Return the errors so far by address of the handle, for cards that report them."""
        binding = self._binding
        try:
            if self._events is None:
                self._events = binding.nvmlEventSetCreate()
        except binding.NVMLError:
            return {}
        for device in devices:
            number = device.address
            if number in self._watched:
                continue
            try:
                binding.nvmlDeviceRegisterEvents(
                    device.handle, binding.nvmlEventTypeXidCriticalError, self._events
                )
            except binding.NVMLError:
                continue
            self._watched.add(number)
        self._take()
        return dict.fromkeys(self._watched, Xids()) | self._found

    def _take(self) -> None:
        """Read all pending events. After an error the watch is restarted."""
        binding = self._binding
        for _ in range(_MOST_EVENTS):
            try:
                event = binding.nvmlEventSetWait_v2(self._events, 0)
            except binding.NVMLError as error:
                if error.value != binding.NVML_ERROR_TIMEOUT:
                    self._restart()
                return
            if event.eventType == binding.nvmlEventTypeXidCriticalError:
                number = handle_address(event.device)
                errors = self._found.get(number, Xids()).errors
                self._found[number] = Xids(errors + 1, int(event.eventData))

    def _restart(self) -> None:
        """Free the event set: a card that fell off the bus makes it fail for all cards."""
        events, self._events = self._events, None
        self._watched.clear()
        try:
            self._binding.nvmlEventSetFree(events)
        except self._binding.NVMLError:
            return
