"""Energy from readings of power: trapezoids between close readings."""

from __future__ import annotations

from ccagent.agents.energy.domains import MeasuredEnergy


class PowerIntegral:
    """Integrates the readings of one meter. longest_gap: maximum seconds between readings."""

    def __init__(self, source: str, longest_gap: float) -> None:
        self._source = source
        self.longest_gap = longest_gap
        self._last: tuple[int, float] | None = None
        self._taken: float | None = None
        self._energy = 0
        self._flaw = ""

    @property
    def moment(self) -> float:
        """Return the moment of the last reading; -1 without one."""
        return -1.0 if self._last is None else self._last[1]

    @property
    def microwatts(self) -> int:
        """Return the last power in uW."""
        return 0 if self._last is None else self._last[0]

    def add(self, microwatts: int, moment: float) -> None:
        """Add a reading at a time of the clock since boot. An earlier time is ignored."""
        before = self._last
        if before is None:
            self._last = microwatts, moment
            self._taken = moment
            return
        seconds = moment - before[1]
        if seconds <= 0:
            return
        self._last = microwatts, moment
        if seconds > self.longest_gap:
            self._flaw = self._flaw or f"{seconds:.0f} s between two readings of power"
            return
        self._energy += (before[0] + microwatts) * round(seconds * 1e6) // 2_000_000

    def take(self) -> MeasuredEnergy | None:
        """Return the energy since the last call in uJ; None before the second reading."""
        if self._last is None or self._taken is None or self._last[1] <= self._taken:
            return None
        seconds = self._last[1] - self._taken
        energy, flaw = 0 if self._flaw else self._energy, self._flaw
        self._taken, self._energy, self._flaw = self._last[1], 0, ""
        return MeasuredEnergy(energy, seconds, self._source, is_estimate=True, flaw=flaw)
