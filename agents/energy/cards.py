"""Energy of the cards from NVML and AMD SMI, and the jobs that own or use them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.energy.accounts import EnergyDomain
from ccagent.agents.energy.sources.base import EnergySource, PowerIntegral
from ccagent.agents.energy.splitting import DomainClaim, DomainUse
from ccagent.agents.sonar.jobs.allocations import Allocations
from ccagent.errors import CcagentError
from ccagent.machine.cgroup.files import list_pids
from ccagent.machine.cgroup.jobs import find_membership, job_directories
from ccagent.machine.gpu.vendor import is_any_present

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.agents.energy.accounts import MeasuredEnergy
    from ccagent.agents.gpu_settings import GpuSettings
    from ccagent.agents.sonar.jobs.allocations import ProcessOfJob
    from ccagent.machine.checks import Check
    from ccagent.machine.gpu.gpus import GpuReading, Gpus
    from ccagent.machine.node import Node

_MOST_PIDS = 4096
_V1 = ("memory", "cpuacct", "devices")
_MOST_WATTS = 3000.0
_MOST_CARDS = 256

_MOST_MILLIJOULES = 1 << 53
"""More mJ than a card can use while a driver is loaded."""

_LONGEST_GAP = 90.0


class CardUse(NamedTuple):
    """Use of a card.

    owners: jobs with an allocation of the card (or of its instances), with the number of
    allocations. activity: utilisation by job, in tenths of a percent. others: utilisation by
    processes outside of jobs. is_busy: the card works, has processes, or has an unknown
    utilisation.
    """

    owners: dict[int, int]
    activity: dict[int, int]
    others: int
    is_busy: bool


class CardOwners:
    """Finds the owners of cards by the device cgroup, the environment, or Slurm."""

    def __init__(self, scontrol: str, squeue: str) -> None:
        self._allocations = Allocations(scontrol, squeue)

    def read(self, node: Node, reading: GpuReading) -> dict[int, CardUse]:
        """Return the use of each physical card by index."""
        processes = list(list_processes(node))
        jobs = {pid: job for pid, job, _ in processes}
        allocations = self._allocations.read(node, processes, reading)
        card_of = _parents(reading)
        owners: dict[int, dict[int, int]] = {}
        for allocation in allocations:
            for index in allocation.cards:
                own = owners.setdefault(card_of.get(index, index), {})
                own[allocation.job] = own.get(allocation.job, 0) + 1
        activity: dict[int, dict[int, int]] = {}
        used: set[int] = set()
        for pid, uses in reading.processes.items():
            job = jobs.get(pid)
            if job is None:
                job = _job_of(node, pid)
            for use in uses:
                card = card_of.get(use.index, use.index)
                used.add(card)
                here = activity.setdefault(card, {})
                here[job] = here.get(job, 0) + round(use.gpu_util * 10)
        card_uses: dict[int, CardUse] = {}
        for state in reading.cards:
            if state.index in reading.instances:
                continue
            here = dict(activity.get(state.index, {}))
            others = here.pop(0, 0)
            has_it = owners.get(state.index) or dict.fromkeys(here, 1)
            is_unknown = (
                state.index in reading.without_utilization
                and state.index not in reading.partitioned
            )
            is_busy = state.ce_util > 0 or state.index in used or is_unknown
            card_uses[state.index] = CardUse(has_it, here, others, is_busy)
        return card_uses


def make_card_use(use: CardUse, seen: Mapping[int, int], span: int) -> DomainUse:
    """Return the use of a card for the split.

    seen: us on this node, by job. A card of one job belongs wholly to it. Several jobs share a card
    by the activity of their processes, or by their allocations if activity is unknown.
    """
    owners = {job: count for job, count in use.owners.items() if job in seen}
    if not owners:
        return DomainUse({}, int(use.is_busy), 1)
    parts = sum(owners.values())
    held = {job: seen[job] * count // parts for job, count in owners.items()}
    if len(owners) == 1:
        ((job, _),) = owners.items()
        return DomainUse({job: DomainClaim(1, held[job], 1, 1)}, 1, span)
    activity = {job: use.activity.get(job, 0) for job in owners}
    if any(activity.values()):
        whole = sum(activity.values()) + use.others
        claims = {job: DomainClaim(busy, held[job], busy, busy) for job, busy in activity.items()}
        return DomainUse(claims, whole, span)
    claims = {job: DomainClaim(count, held[job], 0, parts) for job, count in owners.items()}
    return DomainUse(claims, parts, span)


def list_processes(node: Node) -> Iterator[ProcessOfJob]:
    """Yield the processes in the cgroups of jobs."""
    try:
        directories = job_directories(node, _V1)
    except CcagentError:
        return
    for directory in directories:
        for pid in islice(list_pids(node, directory.path), _MOST_PIDS):
            try:
                uid = node.owner(f"proc/{pid}")
            except CcagentError:
                continue
            yield pid, directory.job, uid


def _job_of(node: Node, pid: int) -> int:
    try:
        return find_membership(node, node.read(f"proc/{pid}/cgroup")).job
    except CcagentError:
        return 0


def _parents(reading: GpuReading) -> dict[int, int]:
    """Return the card of each instance."""
    cards = {
        reading.addresses.get(index): index
        for index in sorted(reading.partitioned)
        if index in reading.addresses
    }
    return {
        index: cards[address]
        for index in reading.instances
        if (address := reading.addresses.get(index)) in cards
    }


class CardSource(EnergySource):
    """Counters of cards. The power of a card without a counter is integrated.

    reading: state of the cards at the last reading, None without cards.
    """

    name: ClassVar[str] = "cards"
    is_slow: ClassVar[bool] = True
    is_kept: ClassVar[bool] = True

    def __init__(self, settings: GpuSettings) -> None:
        super().__init__("gpu")
        self._settings = settings
        self._gpus: Gpus | None = None
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

    def close(self) -> None:
        """Stop the processes of the libraries."""
        if self._gpus is not None:
            self._gpus.close()
