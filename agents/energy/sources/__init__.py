"""Sources of energy on a node: their base, counters and integrals, and the choice between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple, get_args

from ccagent.agents.energy.accounts import DomainKind, EnergyDomain, MeasuredEnergy
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.sensors import EnergyCounter, EnergyReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

_MOST_COUNTERS = 1000

ALL_SOCKETS = -1
"""Number of a domain of all sockets together."""

NOT_READABLE = "it could not be read"
_NEW = "it was read for the first time"

Kept = dict[str, tuple[int, float, float]]
"""Last readings of counters: value, moment (s since boot), steady clock (s)."""

_KINDS: tuple[DomainKind, ...] = get_args(DomainKind)
Measured = dict["EnergyDomain", "MeasuredEnergy"]


class EnergySource(ABC):
    """Measures domains of a node. State is bounded.

    name: name in `method` of records. errors: errors of the last reading. poll_interval: needed
    seconds between two calls of `poll`; 0: none. is_slow: read this source first, so the other
    readings are close to the CPU times of jobs. is_kept: its counters continue in the next process.
    is_patient: no later sample follows; wait for slow programs.
    """

    name: ClassVar[str]
    is_slow: ClassVar[bool] = False
    is_kept: ClassVar[bool] = False

    def __init__(self, method: str = "") -> None:
        self.errors: list[str] = []
        self.poll_interval = 0.0
        self.is_patient = False
        self._counters = DomainCounters(method or self.name)

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
        return self._counters.keep() if self.is_kept else {}

    def restore(self, kept: Kept) -> None:
        """Continue after readings of an earlier process of the same boot."""
        self._counters.restore(kept)

    def close(self) -> None:  # noqa: B027 - overridden by sources with open files
        """Close open files and processes."""


class DomainCounters:
    """Counters of domains; a domain may have several, such as the dies of a package."""

    def __init__(self, source: str) -> None:
        self._source = source
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
        energies: dict[EnergyDomain, MeasuredEnergy] = {}
        new: set[EnergyDomain] = set()
        had_taken, self._has_taken = self._has_taken, True
        for key, counter in self._counters.items():
            domain = self._domains[key]
            last = counter.last
            is_missing = last is None or last.moment < self._moment
            delta = counter.take()
            if is_missing:
                counter.interrupt(self._missing)
                energy = MeasuredEnergy(0, 0.0, self._source, flaw=self._missing)
            elif delta is None and had_taken:
                energy = MeasuredEnergy(0, 0.0, self._source, flaw=_NEW)
            elif delta is None:
                new.add(domain)
                continue
            else:
                energy = MeasuredEnergy(delta.energy, delta.seconds, self._source, flaw=delta.flaw)
            before = energies.get(domain)
            energies[domain] = energy if before is None else _join(before, energy)
        return {domain: energy for domain, energy in energies.items() if domain not in new}

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


def _join(first: MeasuredEnergy, second: MeasuredEnergy) -> MeasuredEnergy:
    return first._replace(
        energy=first.energy + second.energy,
        seconds=max(first.seconds, second.seconds),
        flaw=first.flaw or second.flaw,
    )


def read_all(
    errors: list[str], keys: Iterable[str], read: Callable[[str], int | None]
) -> dict[str, int]:
    """Return the readable values by key; the first error of other keys is in `errors`."""
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


def as_estimates(measured: Measured) -> Measured:
    """Return energies that a model computes, marked as estimates."""
    return {domain: energy._replace(is_estimate=True) for domain, energy in measured.items()}


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


class SourceReadings(NamedTuple):
    """The chosen domains. errors: errors of all sources. absent: reasons for missing sources."""

    measured: Measured
    errors: list[str]
    absent: dict[str, str]


def choose_domains(readings: Iterable[Measured]) -> Measured:
    """Choose the source of each kind of domain: the first source with all domains of the kind.

    If there is none, choose the first source with some of them, then the first source that would
    have them. Two sources for one kind would measure the same energy twice.
    """
    readings = list(readings)
    chosen: Measured = {}
    for kind in _KINDS:
        candidates: list[Measured] = []
        for reading in readings:
            own = {domain: energy for domain, energy in reading.items() if domain.kind == kind}
            if own:
                candidates.append(own)
        if candidates:
            best = max(candidates, key=_quality)
            chosen.update(best)
    return chosen


def _quality(own: Measured) -> int:
    valid = sum(not energy.flaw for energy in own.values())
    return 2 if valid == len(own) else int(valid > 0)


class Sources:
    """The sources of a node, in order of preference."""

    def __init__(self, sources: Sequence[EnergySource]) -> None:
        self.all = sources
        self._known: dict[str, set[EnergyDomain]] = {}

    @property
    def poll_interval(self) -> float:
        """Return the seconds between two calls of `poll`; 0 if not needed."""
        return min(
            (source.poll_interval for source in self.all if source.poll_interval), default=0.0
        )

    def poll(self, node: Node) -> None:
        """Poll the sources that need it between two readings."""
        for source in self.all:
            if source.poll_interval:
                try:
                    source.poll(node)
                except CcagentError:
                    continue  # the next reading reports it

    def read(self, node: Node) -> SourceReadings:
        """Read all sources. A failing source is skipped, with its error.

        Its domains are invalid meanwhile: otherwise their energy would count as `other`. A removed
        domain is invalid once.
        """
        errors: list[str] = []
        absent: dict[str, str] = {}
        measured: dict[str, Measured] = {}
        for source in self.all:
            source.prepare_reading(node)
        for source in sorted(self.all, key=lambda source: not source.is_slow):
            known = self._known.pop(source.name, set())
            missing = NOT_READABLE
            own: Measured = {}
            try:
                own = source.read(node)
                self._known[source.name] = {*own}
            except NotHereError as error:
                absent[source.name] = missing = str(error)
            except CcagentError as error:
                errors.append(f"{source.name}: {error}")
                self._known[source.name] = known
            lost = MeasuredEnergy(0, 0.0, source.name, flaw=missing)
            measured[source.name] = dict.fromkeys(known - own.keys(), lost) | own
            errors += [f"{source.name}: {text}" for text in source.errors]
        readings = [measured[source.name] for source in self.all if source.name in measured]
        return SourceReadings(choose_domains(readings), errors, absent)

    def close(self) -> None:
        """Close all sources."""
        for source in self.all:
            source.close()
