"""Power of idle domains, measured on the idle node. It is never the minimum under load."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.agents.energy.domains import DomainKind, EnergyDomain

WINDOW = 60.0
"""Seconds without a job that form an idle window."""
LEAST_WINDOWS = 3
MOST_WINDOWS = 200
_MOST_DOMAINS = 1000
_QUANTILE = 0.05


class IdleFloor:
    """Learns the idle power of each domain: the 5 % quantile of means over idle windows.

    configured: watts by kind of domain; these are not learned.
    """

    def __init__(self, configured: Mapping[DomainKind, float]) -> None:
        self._configured = dict(configured)
        self.windows: dict[EnergyDomain, list[float]] = {}
        self._open: dict[EnergyDomain, tuple[int, float]] = {}

    def add(self, domain: EnergyDomain, energy: int, seconds: float, *, is_idle: bool) -> None:
        """Add the uJ of a tick. A busy tick ends the window."""
        if not is_idle:
            self._open.pop(domain, None)
            return
        if domain not in self._open and len(self._open) >= _MOST_DOMAINS:
            return
        before = self._open.get(domain, (0, 0.0))
        energy, seconds = before[0] + energy, before[1] + seconds
        if seconds < WINDOW:
            self._open[domain] = energy, seconds
            return
        self._open.pop(domain, None)
        known = self.windows.setdefault(domain, [])
        known.append(energy / 1e6 / seconds)
        del known[:-MOST_WINDOWS]

    def watts(self, domain: EnergyDomain) -> float | None:
        """Return the idle power in W; None while it is unknown."""
        configured = self._configured.get(domain.kind, 0.0)
        if configured > 0:
            return configured
        known = self.windows.get(domain, [])
        if len(known) < LEAST_WINDOWS:
            return None
        return sorted(known)[int(_QUANTILE * len(known))]
