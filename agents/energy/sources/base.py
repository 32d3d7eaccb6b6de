"""Base of energy sources, and their counters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.energy.domains import EnergyDomain, MeasuredEnergy
from ccagent.machine.powercap import EnergyCounter, EnergyReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

_MOST_COUNTERS = 1000

ALL_SOCKETS = -1
"""Number of a domain of all sockets together."""

NOT_READABLE = "it could not be read"
_NEW = "it was read for the first time"

Kept = dict[str, tuple[int, float, float]]
"""Last readings of counters: value, moment (s since boot), steady clock (s)."""


class EnergySource(ABC):
    """Measures domains of a node. State is bounded.

    name: name in `method` of records. errors: errors of the last reading. poll_interval: needed
    seconds between two calls of `poll`; 0: none. is_slow: read this source first, so the other
    readings are close to the CPU times of jobs. is_patient: no later sample follows; wait for slow
    programs.
    """

    name: ClassVar[str]
    is_slow: ClassVar[bool] = False

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.poll_interval = 0.0
        self.is_patient = False

    @abstractmethod
    def read(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        """Return the energy of each domain since the last call.

        The first call returns none. A domain that appears later is invalid once. Raise NotHereError
        on a machine without this source, CcagentError if reading fails.
        """

    def poll(self, node: Node) -> None:  # noqa: B027 - overridden by sources that need it
        """Read wrapping counters between two calls of `read`.

        Runs in another thread, under a lock.
        """

    def prepare_reading(self, node: Node) -> None:  # noqa: B027 - overridden by slow sources
        """Start slow queries. Called before the sources are read."""

    def checks(self, node: Node) -> Iterable[Check]:  # noqa: ARG002 - used by overrides
        """Return the checks for `ccagent doctor`."""
        return ()

    def keep(self) -> Kept:
        """Return the last readings of counters that continue after this process."""
        return {}

    def restore(self, kept: Kept) -> None:
        """Continue after readings of an earlier process of the same boot."""
        del kept

    def close(self) -> None:  # noqa: B027 - overridden by sources with open files
        """Close open files and processes."""


class DomainCounters:
    """Counters of domains; a domain may have several, such as the dies of a package."""

    def __init__(self, source: str, *, is_estimate: bool = False) -> None:
        self._source = source
        self._is_estimate = is_estimate
        self._counters: dict[str, EnergyCounter] = {}
        self._domains: dict[str, EnergyDomain] = {}
        self._restored: Kept = {}
        self._moment = -1.0
        self._missing = NOT_READABLE
        self._has_taken = False

    @property
    def keys(self) -> list[str]:
        """Return the keys of the counters."""
        return [*self._counters]

    @property
    def longest_gap(self) -> float:
        """Return the seconds within which all counters must be read; 0 if none wraps."""
        return min((gap for c in self._counters.values() if (gap := c.longest_gap)), default=0.0)

    def define(self, key: str, domain: EnergyDomain, wraps_at: int, most_watts: float) -> None:
        """Add a counter, unless an equal one exists."""
        known = self._counters.get(key)
        if known is not None and known.wraps_at == wraps_at and self._domains[key] == domain:
            return
        if known is None and len(self._counters) >= _MOST_COUNTERS:
            return
        self._counters[key] = EnergyCounter(wraps_at, most_watts)
        self._domains[key] = domain
        if key in self._restored:
            self._counters[key].restore(EnergyReading(*self._restored.pop(key)))

    def keep_only(self, keys: Iterable[str]) -> None:
        """Remove the counters of removed hardware."""
        wanted = {*keys}
        for key in [key for key in self._counters if key not in wanted]:
            del self._counters[key], self._domains[key]

    def add(self, node: Node, values: Mapping[str, int], missing: str = NOT_READABLE) -> None:
        """Add a reading in uJ by key. missing: reason for missing keys."""
        self._missing = missing
        self._moment = node.clock.uptime()
        steady = node.clock.monotonic()
        for key, value in values.items():
            if key in self._counters:
                self._counters[key].add(EnergyReading(value, self._moment, steady))

    def interrupt(self, reason: str) -> None:
        """Make the current interval of all counters invalid."""
        for counter in self._counters.values():
            counter.interrupt(reason)

    def take(self) -> dict[EnergyDomain, MeasuredEnergy]:
        """Return the energy of the domains since the last call.

        A flaw of a part is a flaw of all.

        A domain that appears after the first call is invalid once.
        """
        found: dict[EnergyDomain, MeasuredEnergy] = {}
        new: set[EnergyDomain] = set()
        had_taken, self._has_taken = self._has_taken, True
        for key, counter in self._counters.items():
            domain = self._domains[key]
            last = counter.last
            is_missing = last is None or last.moment < self._moment
            delta = counter.take()
            if is_missing:
                counter.interrupt(self._missing)
                energy = MeasuredEnergy(0, 0.0, self._source, self._is_estimate, self._missing)
            elif delta is None and had_taken:
                energy = MeasuredEnergy(0, 0.0, self._source, self._is_estimate, _NEW)
            elif delta is None:
                new.add(domain)
                continue
            else:
                energy = MeasuredEnergy(
                    delta.energy, delta.seconds, self._source, self._is_estimate, delta.flaw
                )
            before = found.get(domain)
            found[domain] = energy if before is None else _join(before, energy)
        return {domain: energy for domain, energy in found.items() if domain not in new}

    def keep(self) -> Kept:
        """Return the last reading of each counter."""
        return {
            key: (last.value, last.moment, last.steady)
            for key, counter in self._counters.items()
            if (last := counter.last) is not None
        }

    def restore(self, kept: Kept) -> None:
        """Store these readings for counters defined later."""
        self._restored = dict(list(kept.items())[:_MOST_COUNTERS])


def _join(one: MeasuredEnergy, other: MeasuredEnergy) -> MeasuredEnergy:
    return one._replace(
        energy=one.energy + other.energy,
        seconds=max(one.seconds, other.seconds),
        flaw=one.flaw or other.flaw,
    )


def read_all(
    errors: list[str], keys: Iterable[str], read: Callable[[str], int | None]
) -> dict[str, int]:
    """Return the readable values by key; the first error of other keys is in `errors`."""
    from ccagent.errors import CcagentError, NotHereError

    values: dict[str, int] = {}
    problems: list[str] = []
    for key in keys:
        try:
            value = read(key)
        except NotHereError:
            continue
        except CcagentError as error:
            problems.append(str(error))
            continue
        if value is not None:
            values[key] = value
    errors += problems[:1]
    return values
