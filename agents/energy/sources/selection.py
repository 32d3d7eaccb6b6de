"""All sources of a node, and the choice of one source for each kind of domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, get_args

from ccagent.agents.energy.domains import DomainKind, MeasuredEnergy
from ccagent.agents.energy.sources.base import NOT_READABLE
from ccagent.errors import CcagentError, NotHereError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccagent.agents.energy.domains import EnergyDomain
    from ccagent.agents.energy.sources.base import EnergySource
    from ccagent.machine.node import Node

_KINDS: tuple[DomainKind, ...] = get_args(DomainKind)

Measured = dict["EnergyDomain", "MeasuredEnergy"]


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
            own = {domain: each for domain, each in reading.items() if domain.kind == kind}
            if own:
                candidates.append(own)
        if candidates:
            best = max(candidates, key=_quality)
            chosen.update(best)
    return chosen


def _quality(own: Measured) -> int:
    valid = sum(not each.flaw for each in own.values())
    return 2 if valid == len(own) else int(valid > 0)


class Sources:
    """The sources of a node, in order of preference."""

    def __init__(self, sources: Sequence[EnergySource]) -> None:
        self.all = sources
        self._known: dict[str, set[EnergyDomain]] = {}

    @property
    def poll_interval(self) -> float:
        """Return the seconds between two calls of `poll`; 0 if not needed."""
        return min((each.poll_interval for each in self.all if each.poll_interval), default=0.0)

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
        found: dict[str, Measured] = {}
        for source in self.all:
            source.prepare_reading(node)
        for source in sorted(self.all, key=lambda each: not each.is_slow):
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
            found[source.name] = dict.fromkeys(known - own.keys(), lost) | own
            errors += [f"{source.name}: {text}" for text in source.errors]
        readings = [found[source.name] for source in self.all if source.name in found]
        return SourceReadings(choose_domains(readings), errors, absent)

    def close(self) -> None:
        """Close all sources."""
        for source in self.all:
            source.close()
