"""Idle power of domains: configured, learned from idle windows, or bounded by loaded ones."""

from __future__ import annotations

from math import inf, log2
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.agents.energy.accounts import DomainKind, EnergyDomain, MeasuredEnergy
    from ccagent.agents.energy.splitting import DomainUse

WINDOW = 60.0
"""Seconds without a job that form an idle window."""

LEAST_WINDOWS = 3
MOST_WINDOWS = 200
_MOST_DOMAINS = 1000
_QUANTILE = 0.05

_LEARNED_ERROR = 0.05
"""Relative error of a learned idle power; idle windows may have 1 % of CPU time."""

_LOAD_WINDOW = 10.0
"""Seconds of a window under load. Short ticks have a large error of the CPU time."""

_NOISE = 0.01
"""Relative error of a window's power, because energy and CPU time aren't read at one moment."""

_MISSED = 0.001
"""Share of the cpus whose busy time the kernel's accounting may miss."""

_KNOWN = 0.1
"""Largest width of the bounds of a known idle power, relative to the upper one."""


class IdlePower(NamedTuple):
    """Idle power of a domain in W, with bounds."""

    least: float
    watts: float
    most: float
    is_known: bool


class LoadBounds:
    """Bounds of the idle power of a domain in W, from windows under load.

    A window has the power P = p + w b, with the idle power p, b busy cpus, and w watts per cpu. By
    assumption w differs at most by a ratio r between windows. Hence for windows s and t: (P_t - p)
    / (r b_t) <= (P_s - p) / b_s, which bounds p. The power of one window alone bounds it
    to 0..P. Contradicting windows, such as after a change of the firmware's settings, are
    forgotten.

    guess: idle power by the window of the lowest power alone.
    """

    def __init__(self) -> None:
        self.least = 0.0
        self.most = inf
        self.guess = inf
        self._lowest: dict[int, tuple[float, float]] = {}
        self._highest: dict[int, tuple[float, float]] = {}

    def add(self, power: float, busy: float, cpus: int, ratio: float) -> None:
        """Add the power of a window in W, and its busy cpus; cpus: of the domain."""
        below, above = power * (1 - _NOISE), power * (1 + _NOISE)
        key = int(2 * log2(busy + 0.01))
        low, high = self._lowest.get(key, (0.0, inf)), self._highest.get(key, (0.0, -1.0))
        if low[1] <= above and below <= high[1]:
            return
        if above < self.most:
            self.most, self.guess = above, guess_idle(power, busy / cpus)
        steepest = ratio * (busy + _MISSED * cpus)
        if above < low[1]:
            self._lowest[key] = busy, above
        if below > high[1]:
            self._highest[key] = steepest, below
        for other, its_power in self._highest.values():
            self._narrow(busy, above, other, its_power)
        for other, its_power in self._lowest.values():
            self._narrow(other, its_power, steepest, below)
        if self.least > self.most:
            self.least, self.most = 0.0, above
            self._lowest, self._highest = {key: (busy, above)}, {key: (steepest, below)}

    def _narrow(self, busy: float, above: float, steepest: float, below: float) -> None:
        """Narrow p, for p + w busy <= above and p + w steepest >= below with the same w."""
        slope = steepest - busy
        if slope > 0:
            self.most = min(self.most, (steepest * above - busy * below) / slope)
        elif slope < 0:
            self.least = max(self.least, (busy * below - steepest * above) / -slope)


class IdleFloor:
    """Learns the idle power of each domain.

    It is the 5 % quantile of means over windows of the idle node, and never the minimum under load.
    Until there are enough of them, windows under load bound it.

    configured: watts by kind of domain; these are not learned. ratios: by kind of domain, of the
    watts per busy cpu.
    """

    def __init__(
        self, configured: Mapping[DomainKind, float], ratios: Mapping[DomainKind, float]
    ) -> None:
        self._configured = dict(configured)
        self._ratios = dict(ratios)
        self.windows: dict[EnergyDomain, list[float]] = {}
        self.loads: dict[EnergyDomain, LoadBounds] = {}
        self._open: dict[EnergyDomain, tuple[int, float]] = {}
        self._loaded: dict[EnergyDomain, tuple[int, float, int]] = {}

    def add(
        self, domain: EnergyDomain, each: MeasuredEnergy, use: DomainUse, *, is_idle: bool
    ) -> IdlePower:
        """Add the energy of a tick, and return the idle power. A busy tick ends the window."""
        configured = self._configured.get(domain.kind, 0.0)
        if configured > 0:
            return IdlePower(configured, configured, configured, is_known=True)
        if domain in self.loads or len(self.loads) < _MOST_DOMAINS:
            self._add_load(domain, each, use)
            self._add_idle(domain, each, is_idle=is_idle)
        seconds = max(each.seconds, 1e-6)
        share = use.busy / 1e6 / seconds / use.cpus if use.cpus else 1.0
        return self._find(domain, each.energy / 1e6 / seconds, share)

    def restore(
        self, domain: EnergyDomain, windows: list[float], least: float, most: float | None
    ) -> None:
        """Continue with the knowledge of an earlier process: idle windows, and bounds in W."""
        if windows:
            self.windows[domain] = [*windows]
        if most is not None:
            load = self.loads[domain] = LoadBounds()
            load.least, load.most, load.guess = least, most, most / 2

    def watts(self, domain: EnergyDomain) -> float | None:
        """Return the configured or learned idle power in W; None while it is unknown."""
        configured = self._configured.get(domain.kind, 0.0)
        if configured > 0:
            return configured
        known = self.windows.get(domain, [])
        if len(known) < LEAST_WINDOWS:
            return None
        return sorted(known)[int(_QUANTILE * len(known))]

    def _add_idle(self, domain: EnergyDomain, each: MeasuredEnergy, *, is_idle: bool) -> None:
        if not is_idle:
            self._open.pop(domain, None)
            return
        before = self._open.get(domain, (0, 0.0))
        energy, seconds = before[0] + each.energy, before[1] + each.seconds
        if seconds < WINDOW:
            self._open[domain] = energy, seconds
            return
        self._open.pop(domain, None)
        known = self.windows.setdefault(domain, [])
        known.append(energy / 1e6 / seconds)
        del known[:-MOST_WINDOWS]

    def _add_load(self, domain: EnergyDomain, each: MeasuredEnergy, use: DomainUse) -> None:
        energy, seconds, busy = self._loaded.pop(domain, (0, 0.0, 0))
        energy, seconds, busy = energy + each.energy, seconds + each.seconds, busy + use.busy
        if seconds < _LOAD_WINDOW:
            self._loaded[domain] = energy, seconds, busy
            return
        load = self.loads.setdefault(domain, LoadBounds())
        power = energy / 1e6 / seconds
        if use.cpus:
            ratio = self._ratios.get(domain.kind, 1.0)
            load.add(power, busy / 1e6 / seconds, use.cpus, ratio)
        elif power * (1 + _NOISE) < load.most:
            load.most, load.guess = power * (1 + _NOISE), guess_idle(power, 1.0)

    def _find(self, domain: EnergyDomain, power: float, share: float) -> IdlePower:
        """Return the idle power. power: W of the tick. share: of the domain that was busy."""
        load = self.loads.get(domain)
        least, most, guess = 0.0, power, guess_idle(power, share)
        if load is not None:
            least, most, guess = load.least, min(load.most, power), min(load.guess, guess)
        watts = self.watts(domain)
        if watts is not None:
            low, high = watts * (1 - _LEARNED_ERROR), watts * (1 + _LEARNED_ERROR)
            if max(least, low) <= min(most, high):
                low, high = max(least, low), min(most, high)
            else:  # they contradict each other
                low, high = min(low, most), max(high, least)
            return IdlePower(low, min(max(watts, low), high), high, is_known=True)
        least = min(least, most)
        is_known = most - least <= _KNOWN * most
        return IdlePower(least, min(max(guess, least), most), most, is_known=is_known)


def guess_idle(power: float, share: float) -> float:
    """Return the idle power in W if a fully busy domain draws twice its idle power."""
    return power / (1 + min(1.0, share))
