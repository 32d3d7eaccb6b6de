"""Idle power of domains: configured, learned from idle windows, or bounded by loaded ones."""

from __future__ import annotations

from math import inf, log2, sqrt
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.agents.energy.accounts import DomainKind, DomainUse, EnergyDomain, MeasuredEnergy

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

_FIT_WINDOW = 600.0
"""Seconds of a window of the regression."""

_SUMS = 6
_LEAST_FITTED = 6
_MOST_FITTED = 1000
_FIT_ERRORS = 3.0
"""Standard errors that bound the idle power. Over 95 % of jobs on model machines are within."""

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


class LoadFit:
    """Regression of the power of a domain on its busy cpus, over long windows under load.

    The error of the idle power is several standard errors: successive windows have jobs in common,
    so they aren't independent. sums: number, and sums of busy, power and their products; half of
    them is forgotten now and then.
    """

    def __init__(self) -> None:
        self.sums: list[float] = [0.0] * _SUMS
        self._open = (0.0, 0.0, 0.0)

    def add(self, joules: float, busy: float, seconds: float) -> None:
        """Add the energy of a window, and its busy cpu seconds."""
        joules, busy = joules + self._open[0], busy + self._open[1]
        seconds += self._open[2]
        self._open = joules, busy, seconds
        if seconds < _FIT_WINDOW:
            return
        self._open = (0.0, 0.0, 0.0)
        x, y = busy / seconds, joules / seconds
        keep = 0.5 if self.sums[0] >= _MOST_FITTED else 1.0
        new = (1.0, x, y, x * x, x * y, y * y)
        self.sums = [keep * old + more for old, more in zip(self.sums, new, strict=True)]

    def bounds(self) -> tuple[float, float]:
        """Return the bounds of the idle power in W; 0 and infinity while they are unknown."""
        n, x, y, xx, xy, yy = self.sums
        spread = xx - x * x / n if n >= _LEAST_FITTED else 0.0
        if spread <= 0:
            return 0.0, inf
        slope = (xy - x * y / n) / spread
        rest = max(0.0, yy - y * y / n - slope * (xy - x * y / n))
        watts = (y - slope * x) / n
        error = _FIT_ERRORS * sqrt(rest / (n - 2) * xx / n / spread) + _NOISE * y / n
        return max(0.0, watts - error), max(0.0, watts + error)


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
        self.fits: dict[EnergyDomain, LoadFit] = {}
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
        self, domain: EnergyDomain, windows: list[float], bounds: tuple[float, float] | None,
        sums: list[float],
    ) -> None:  # fmt: skip
        """Continue with the knowledge of an earlier process.

        windows: idle windows in W. bounds: of `LoadBounds`. sums: of `LoadFit`.
        """
        if windows:
            self.windows[domain] = [*windows]
        if bounds is not None:
            load = self.loads[domain] = LoadBounds()
            load.least, load.most = bounds
            load.guess = load.most / 2
        if len(sums) == _SUMS:
            self.fits[domain] = LoadFit()
            self.fits[domain].sums = [*sums]

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
            self.fits.setdefault(domain, LoadFit()).add(energy / 1e6, busy / 1e6, seconds)
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
        fit = self.fits.get(domain)
        if fit is not None:
            low, high = fit.bounds()
            if max(least, low) <= min(most, high):
                least, most = max(least, low), min(most, high)
                guess = guess if high == inf else (least + most) / 2
        least = min(least, most)
        is_known = most - least <= _KNOWN * most
        return IdlePower(least, min(max(guess, least), most), most, is_known=is_known)


def guess_idle(power: float, share: float) -> float:
    """Return the idle power in W if a fully busy domain draws twice its idle power."""
    return power / (1 + min(1.0, share))
