"""Ledger that splits the energy of each tick and adds it to accounts, exact in uJ."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.energy.accounts import (
    NAMES,
    NODE_METER,
    PART_OF,
    SYSTEM,
    UNALLOCATED,
    DomainSplit,
    EnergyDomain,
    EnergyKey,
    EnergyPart,
    IdleEnergy,
    JobAccount,
    NodeAccount,
    split_domain,
    split_idle,
)
from ccagent.agents.energy.sources import ALL_SOCKETS
from ccagent.machine.job_energy import JobEnergy, NodeEnergy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ccagent.agents.energy.accounts import DomainKind, DomainUse, MeasuredEnergy
    from ccagent.agents.energy.idle_power import IdleFloor
    from ccagent.agents.energy.job_states import NodeUse

_MOST_ACCOUNTS = 20_000


class TickTotals(NamedTuple):
    """The split of a tick by domain: uJ of jobs, SYSTEM and UNALLOCATED, and the sum."""

    split: dict[EnergyDomain, dict[int, int]]
    measured: dict[EnergyDomain, int]


class Ledger:
    """The accounts of the node and of the jobs on it.

    ratios: by kind of domain, assumed ratio of watts per CPU second of jobs that share it.
    """

    def __init__(self, floor: IdleFloor, ratios: Mapping[DomainKind, float]) -> None:
        self.floor = floor
        self.node = NodeAccount()
        self.jobs: dict[int, JobAccount] = {}
        self.seconds = 0.0
        self.power: int | None = None
        self.flaws: dict[EnergyDomain, str] = {}
        self._ratios = dict(ratios)
        self._tick_energy: dict[int, int] = {}

    def add_tick(
        self,
        use: NodeUse,
        measured: Mapping[EnergyDomain, MeasuredEnergy],
        use_of_card: Callable[[int], DomainUse],
        time: float,
    ) -> TickTotals:
        """Split a tick that ends at `time`, seconds since 1970."""
        self._open_accounts(use, time)
        self._tick_energy = {}
        self.flaws = {domain: energy.flaw for domain, energy in measured.items() if energy.flaw}
        valid = {domain: energy for domain, energy in measured.items() if not energy.flaw}
        totals = TickTotals({}, {})
        parts = 0
        on_cards: dict[int, set[EnergyDomain]] = {}
        for domain in measured:
            if domain.kind == "card":
                for number in use_of_card(domain.number).claims:
                    on_cards.setdefault(number, set()).add(domain)
        is_idle = use.is_idle()
        for domain, each in valid.items():
            if domain == NODE_METER:
                continue
            domain_use = use_of_card(domain.number) if domain.kind == "card" else use.use_of(domain)
            split = self._split(domain, each, domain_use, is_idle=is_idle)
            self._book(PART_OF[domain.kind], each, split, totals, domain)
            parts += each.energy
        if NODE_METER in valid:
            self._add_other(use, valid, totals, parts)
        self._cover(use, measured, on_cards)
        node = valid.get(NODE_METER)
        for number in use.jobs:
            account = self.jobs.get(number)
            if account is None:
                continue
            if node is not None:
                account.of_node += node.energy
                account.of_parts += parts
            energy = self._tick_energy.get(number)
            is_known = energy is not None and not self.flaws
            account.power = (energy or 0) * 1_000_000 // use.span if is_known else None
        self.seconds += use.span / 1e6
        whole = sum(totals.measured.values())
        is_whole = bool(totals.measured) and not self.flaws
        self.power = whole * 1_000_000 // use.span if is_whole else None
        return totals

    def snapshot(self, counter_error: float, estimate_error: float) -> NodeEnergy:
        """Return a copy of the accounts for other parts of the process.

        counter_error, estimate_error: relative errors of the sensors, for the intervals.
        """
        jobs = {
            number: JobEnergy(
                {
                    key: account.energy[name]
                    for key, name in NAMES.items()
                    if name in account.energy
                },
                account.power,
                account.coverage,
                account.interval(counter_error, estimate_error),
                account.memory_interval(counter_error, estimate_error),
                is_idle_known=not account.is_idle_unknown,
            )
            for number, account in self.jobs.items()
        }
        node = self.node
        return NodeEnergy(
            jobs, dict(node.energy), dict(node.system), dict(node.unallocated), self.power
        )

    def _open_accounts(self, use: NodeUse, time: float) -> None:
        for number, span in use.jobs.items():
            account = self.jobs.get(number)
            if account is None:
                if len(self.jobs) >= _MOST_ACCOUNTS:
                    continue
                first = time - span.seen / 1e6
                account = self.jobs[number] = JobAccount(job=number, first=first)
            account.last = time
            account.seconds += span.seen
            account.exclusive += span.seen if number in use.exclusive else 0

    def _split(
        self, domain: EnergyDomain, each: MeasuredEnergy, use: DomainUse, *, is_idle: bool
    ) -> DomainSplit:
        """Split a domain by its idle floor, and update the floor."""
        if domain.kind == "board":
            return split_idle(each.energy, use)
        is_free = is_idle if domain.kind != "card" else not use.busy and not use.claims
        power = self.floor.add(domain, each, use, is_idle=is_free)
        if not power.is_known:
            for number in use.claims:
                if number in self.jobs:
                    self.jobs[number].is_idle_unknown = True
        unit = each.seconds * 1e6
        idle = IdleEnergy(
            int(power.least * unit), round(power.watts * unit), ceil(power.most * unit)
        )
        return split_domain(each.energy, idle, use, self._ratios.get(domain.kind, 1.0))

    def _add_other(
        self,
        use: NodeUse,
        valid: Mapping[EnergyDomain, MeasuredEnergy],
        totals: TickTotals,
        parts: int,
    ) -> None:
        """Add the node's energy beyond its domains to `other`; carry over a negative rest."""
        if self.flaws:
            return  # the energy of an unknown domain would count as other
        rest = valid[NODE_METER].energy - parts + self.node.carried
        self.node.carried = min(0, rest)
        if rest <= 0:
            totals.measured[NODE_METER], totals.split[NODE_METER] = 0, {}
            return
        each = valid[NODE_METER]._replace(energy=rest)
        node_use = use.use_of(NODE_METER)
        if any(domain.kind == "package" for domain in valid):
            split = split_idle(rest, node_use)
        else:  # the rest includes the processors, so split it by CPU time
            split = self._split(NODE_METER, each, node_use, is_idle=use.is_idle())
        self._book("other", each, split, totals, NODE_METER)

    def _book(
        self,
        part: EnergyPart,
        each: MeasuredEnergy,
        split: DomainSplit,
        totals: TickTotals,
        domain: EnergyDomain,
    ) -> None:
        """Add a split to the accounts. Energy of jobs without an account counts as system."""
        system = split.active.get(SYSTEM, 0)
        unallocated = split.idle.get(UNALLOCATED, 0)
        booked: dict[int, int] = {}
        shares: tuple[tuple[EnergyKey, dict[int, int]], ...] = (
            ((part, "active"), split.active), ((part, "idle"), split.idle),
        )  # fmt: skip
        for key, energies in shares:
            for number, energy in energies.items():
                if number < 0:
                    continue
                account = self.jobs.get(number)
                if account is None:
                    system += energy
                    continue
                account.add(key, energy)
                account.counted += 0 if each.is_estimate else energy
                account.methods[part] = each.source
                booked[number] = booked.get(number, 0) + energy
                self._tick_energy[number] = self._tick_energy.get(number, 0) + energy
        for number, least in split.least.items():
            account = self.jobs.get(number)
            if account is None:
                continue
            account.least += least
            account.most += split.most[number]
            if part == "memory":
                account.memory_least += least
                account.memory_most += split.most[number]
        self.node.add(part, each.energy, system, unallocated)
        totals.split[domain] = booked | {SYSTEM: system, UNALLOCATED: unallocated}
        totals.measured[domain] = each.energy

    def _cover(
        self,
        use: NodeUse,
        measured: Mapping[EnergyDomain, MeasuredEnergy],
        on_cards: Mapping[int, set[EnergyDomain]],
    ) -> None:
        """Count the time of jobs, weighted by the share of their domains that are valid."""
        kinds = {"package", "dram"}
        if not any(domain.kind == "package" for domain in measured):
            kinds.add("node")
        places = [
            (ALL_SOCKETS if domain == NODE_METER else domain.number, not energy.flaw)
            for domain, energy in measured.items()
            if domain.kind in kinds
        ]
        of_sockets: dict[frozenset[int], list[bool]] = {}
        for number, span in use.jobs.items():
            account = self.jobs.get(number)
            if account is None or not span.is_known:
                continue
            sockets = frozenset(use.sockets_of(number))
            if sockets not in of_sockets:
                of_sockets[sockets] = [valid for place, valid in places if place in sockets]
            own = of_sockets[sockets]
            if number in on_cards:
                own = [*own, *(not measured[domain].flaw for domain in on_cards[number])]
            if own:
                account.covered += span.seen * sum(own) // len(own)
