"""Energy counters with few bits: deltas across wraps, and detection of unknown deltas."""

from __future__ import annotations

from typing import NamedTuple

_UPDATE = 0.1
"""Maximum delay of a counter in seconds: some are updated only every 60 ms."""

_SUSPENDED = 1.0


class EnergyReading(NamedTuple):
    """A reading. value: uJ. moment: seconds since boot, including suspended time.

    steady: seconds of a clock that stops while the machine is suspended.
    """

    value: int
    moment: float
    steady: float


class EnergyDelta(NamedTuple):
    """Energy since the previous call of `take`.

    energy: uJ. seconds: between the first and the last reading. flaw: the reason why the energy is
    unknown; empty if it is known.
    """

    energy: int
    seconds: float
    flaw: str = ""


class EnergyCounter:
    """Adds up the deltas of a counter. An unknown delta is a flaw and is never estimated.

    wraps_at: maximum value in uJ, after which the counter continues at 0; 0: it never wraps.
    most_watts: maximum power; a larger delta means that the counter was reset.
    """

    def __init__(self, wraps_at: int, most_watts: float) -> None:
        self.wraps_at = wraps_at
        self.most_watts = most_watts
        self.last: EnergyReading | None = None
        self.total = 0
        self.flaws = 0
        self._taken: EnergyReading | None = None
        self._energy = 0
        self._flaw = ""

    @property
    def longest_gap(self) -> float:
        """Return the seconds for the full range at maximum power; 0 if the counter never wraps."""
        return self.wraps_at / 1e6 / self.most_watts

    def restore(self, reading: EnergyReading) -> None:
        """Continue from a reading of an earlier process since the same boot."""
        self.last = self._taken = reading

    def add(self, reading: EnergyReading) -> None:
        """Add a reading. A gap that is too long, or a reset, makes the interval invalid."""
        before, self.last = self.last, reading
        if before is None:
            self._taken = reading
            return
        delta, flaw = self._subtract(before, reading)
        self._energy += delta
        self.total += delta
        if flaw:
            self._flaw = flaw
            self.flaws += 1

    def take(self) -> EnergyDelta | None:
        """Return the energy since the last call; None before the second reading."""
        first, last = self._taken, self.last
        if first is None or last is None or last.moment <= first.moment:
            return None
        flaw = self._flaw
        found = EnergyDelta(0 if flaw else self._energy, last.moment - first.moment, flaw)
        self._taken, self._energy, self._flaw = last, 0, ""
        return found

    def interrupt(self, reason: str) -> None:
        """Make the current interval invalid: a reading is missing."""
        if self.last is not None:
            self._flaw = self._flaw or reason

    def _subtract(self, before: EnergyReading, now: EnergyReading) -> tuple[int, str]:
        """Return the delta and an empty text, or 0 and the reason why the delta is unknown."""
        seconds = now.moment - before.moment
        if seconds < 0:
            return 0, "the clock since boot went back"
        if seconds - (now.steady - before.steady) > _SUSPENDED:
            return 0, "the machine was suspended"
        delta = now.value - before.value
        if self.wraps_at:
            if seconds > self.longest_gap:
                return 0, (
                    f"{seconds:.0f} s between two readings, and the counter may wrap"
                    f" every {self.longest_gap:.0f} s"
                )
            if delta < 0:
                delta += self.wraps_at + 1
        if not 0 <= delta <= self.most_watts * 1e6 * (seconds + _UPDATE):
            return 0, "the counter was reset"
        return delta, ""
