"""Jobs that own or use the cards of the node."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.energy.job_states import list_pids
from ccagent.agents.energy.split.domain_split import DomainClaim, DomainUse
from ccagent.agents.sonar.jobs.allocations import Allocations
from ccagent.agents.sonar.process import Process
from ccagent.errors import CcagentError
from ccagent.machine.cgroup.jobs import find_membership, job_directories

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.machine.gpu.gpus import GpuReading
    from ccagent.machine.node import Node

_MOST_PIDS = 4096
_V1 = ("memory", "cpuacct", "devices")


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
        jobs = {process.pid: process.job for process in processes}
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
        found: dict[int, CardUse] = {}
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
            found[state.index] = CardUse(has_it, here, others, is_busy)
        return found


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


def list_processes(node: Node) -> Iterator[Process]:
    """Yield the processes in the cgroups of jobs."""
    try:
        directories = job_directories(node, _V1)
    except CcagentError:
        return
    for each in directories:
        for pid in islice(list_pids(node, each.path), _MOST_PIDS):
            try:
                uid = node.owner(f"proc/{pid}")
            except CcagentError:
                continue
            yield Process(pid, 0, 0, each.job, uid, "", in_container=False)


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
