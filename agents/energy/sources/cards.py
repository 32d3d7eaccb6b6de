"""Energy of GPUs from counters of NVML and AMD SMI, and the state of the cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.energy.domains import EnergyDomain
from ccagent.agents.energy.sources.base import DomainCounters, EnergySource, Kept
from ccagent.agents.energy.sources.integral import PowerIntegral
from ccagent.machine.gpu.presence import is_any_present

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.energy.domains import MeasuredEnergy
    from ccagent.agents.gpu_settings import GpuSettings
    from ccagent.machine.checks import Check
    from ccagent.machine.gpu.gpus import GpuReading, Gpus
    from ccagent.machine.node import Node

_MOST_WATTS = 3000.0
_MOST_CARDS = 256
_MOST_MILLIJOULES = 1 << 53
"""More mJ than a card can use while a driver is loaded."""
_LONGEST_GAP = 90.0


class CardSource(EnergySource):
    """Counters of cards. The power of a card without a counter is integrated.

    reading: state of the cards at the last reading, None without cards.
    """

    name: ClassVar[str] = "cards"
    is_slow: ClassVar[bool] = True

    def __init__(self, settings: GpuSettings) -> None:
        super().__init__()
        self._settings = settings
        self._gpus: Gpus | None = None
        self._counters = DomainCounters("gpu")
        self._integrals: dict[int, PowerIntegral] = {}
        self._was_asked = False
        self.reading: GpuReading | None = None

    def checks(self, node: Node) -> Iterator[Check]:
        """Return the checks of the vendors' libraries."""
        from ccagent.machine.gpu.checks import check_vendors

        yield from check_vendors(node, self._settings.gpu_vendors)

    def prepare_reading(self, node: Node) -> None:
        """Start the calls of the libraries. They run while files are read."""
        self._was_asked = False
        if self._gpus is None:
            if not is_any_present(node, self._settings.gpu_vendors):
                return
            self._gpus = self._settings.make_gpus(node)
        self._gpus.ask("read", ["energy"])
        self._was_asked = True

    def read(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        """Return the energy of the cards. The libraries return mJ since the driver was loaded."""
        self.errors = []
        if self._gpus is None or not self._was_asked:
            self.reading = None
            return {}
        reading = self.reading = self._gpus.reading(self.errors)
        # The index of a card changes if an earlier card falls off the bus.
        keys = {card.index: f"card {card.uuid or card.index}" for card in reading.cards}
        values: dict[str, int] = {}
        for index, key in keys.items():
            for detail in reading.details.get(index, ()):
                if detail.name == "energy" and 0 <= detail.value < _MOST_MILLIJOULES:
                    values[key] = detail.value * 1000
                    self._counters.define(key, EnergyDomain("card", index), 0, _MOST_WATTS)
        if keys:  # a library that does not answer lists no card
            self._counters.keep_only(keys.values())
        self._counters.add(node, values)
        counted = {index for index, key in keys.items() if key in self._counters.keys}
        found = self._counters.take()
        moment = node.clock.uptime()
        for card in reading.cards[:_MOST_CARDS]:
            if card.index in counted or card.index in reading.instances:
                self._integrals.pop(card.index, None)
                continue
            integral = self._integrals.setdefault(card.index, PowerIntegral("gpu", _LONGEST_GAP))
            if card.power and not card.failing:
                integral.add(card.power * 1_000_000, moment)
            if (taken := integral.take()) is not None:
                found[EnergyDomain("card", card.index)] = taken
        return found

    def keep(self) -> Kept:
        """Return the last readings."""
        return self._counters.keep()

    def restore(self, kept: Kept) -> None:
        """Continue after the readings of an earlier process."""
        self._counters.restore(kept)

    def close(self) -> None:
        """Stop the processes of the libraries."""
        if self._gpus is not None:
            self._gpus.close()
