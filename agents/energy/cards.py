"""Energy of the cards from NVML and AMD SMI, and the jobs that own or use them.

APUs are processors with a GPU on one socket, whose power is measured for both together. AMD SMI
names the power of an MI300A that of its socket. RAPL and amd_energy measure the same package, so
only one of them counts.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.energy.accounts import DomainClaim, DomainUse, EnergyDomain, MeasuredEnergy
from ccagent.agents.energy.sources import ALL_SOCKETS, EnergySource, Measured, PowerIntegral
from ccagent.agents.sonar.jobs.allocations import Allocations, ProcessOfJob
from ccagent.errors import CcagentError
from ccagent.machine.cgroup.files import list_pids
from ccagent.machine.cgroup.jobs import job_of_process, known_directories
from ccagent.machine.cpus import read_socket
from ccagent.machine.gpu.vendor import PER_PERCENT, UNKNOWN_MODULE, is_any_present
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import parse_cpu_list, parse_topology_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.agents.base import GpuSettings
    from ccagent.machine.checks import Check
    from ccagent.machine.gpu.gpus import GpuReading, Gpus
    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SampleGpu

_MOST_PIDS = 4096
_V1 = ("memory", "cpuacct", "devices")
_MOST_WATTS = 3000.0
_MOST_CARDS = 256

_MOST_MILLIJOULES = 1 << 53
"""More mJ than a card can use while a driver is loaded."""

_LONGEST_GAP = 90.0
_UNIT = 1000

_APU_DEVICES = (b"0x74a0",)
"""PCI device ids of the MI300A. Source: pci.ids."""

_APU_SCALE = 1_000_000
_LEAST_GPU, _GPU, _MOST_GPU = 1.0, 4.0, 16.0
"""Assumed active power of the fully used GPU of an APU, in that of all cores, with bounds."""


class CardUse(NamedTuple):
    """Use of a card, or of all cards of a module with one power meter.

    A card without parts has a single part of weight 1; the parts of others are MIG instances,
    weighted by their multiprocessors, dies or partitions.

    owners: jobs with an allocation of parts, with their number, or in thousandths of the weights.
    activity: utilisation by job, in tenths of a percent times weight. others: the same, by
    processes outside of jobs. is_busy: a part works, has processes, or has an unknown utilisation.
    whole: weight of all parts of a card with several in thousandths; 0: it has none. is_known: the
    activity of all jobs is known.
    """

    owners: dict[int, int]
    activity: dict[int, int]
    others: int
    is_busy: bool
    whole: int = 0
    is_known: bool = True


class CardOwners:
    """Finds the owners of cards by the device cgroup, the environment, or Slurm."""

    def __init__(self, scontrol: str, squeue: str) -> None:
        self._allocations = Allocations(scontrol, squeue)

    def read(
        self, node: Node, reading: GpuReading, meters: Mapping[int, int] | None = None
    ) -> dict[int, CardUse]:
        """Return the use of each physical card with a power meter by index.

        meters: index of the card whose meter includes the power of a card without one.
        """
        processes = list(list_processes(node))
        jobs = {pid: job for pid, job, _ in processes}
        owners: dict[int, dict[int, int]] = {}
        for allocation in self._allocations.read(node, processes, reading):
            for index in allocation.cards:
                own = owners.setdefault(index, {})
                own[allocation.job] = own.get(allocation.job, 0) + 1
        users: dict[int, dict[int, int]] = {}
        for pid, uses in reading.processes.items():
            job = jobs.get(pid)
            if job is None:
                job = job_of_process(node, pid)
            for use in uses:
                here = users.setdefault(use.index, {})
                here[job] = here.get(job, 0) + round(use.gpu_util * 10)
        cards = _parents(reading)
        meters = {**(meters or {}), **cards}
        parts: dict[int, list[CardPart]] = {}
        for state in reading.cards:
            if state.index not in cards.values():
                index = meters.get(state.index, state.index)
                part = _make_part(reading, state, owners, users.get(state.index, {}))
                parts.setdefault(index, []).append(part)
        return {
            index: _join_parts(found, reading.multiprocessors.get(index, 0))
            for index, found in parts.items()
        }


class CardPart(NamedTuple):
    """A card, die or instance. weight: multiprocessors of an instance, 0: unknown.

    owners: allocations by job. users: utilisation of its processes in tenths of a percent, by job;
    0: outside of jobs. utilisation: of the part in tenths of a percent, None: unknown. has_shares:
    `users` are measured. is_busy: it works, has processes, or is a card of unknown utilisation.
    """

    weight: int
    owners: dict[int, int]
    users: dict[int, int]
    utilisation: int | None
    has_shares: bool = True
    is_busy: bool = False

    def find_activity(self) -> dict[int, int] | None:
        """Return the utilisation by job; None if it is unknown."""
        if self.has_shares and any(self.users.values()):
            return self.users
        jobs = {*self.owners, *self.users} or {0}
        if self.utilisation is None:
            return {} if jobs == {0} and not self.is_busy else None
        if not self.utilisation:
            return {}
        return dict.fromkeys(jobs, self.utilisation) if len(jobs) == 1 else None


def _make_part(
    reading: GpuReading, state: SampleGpu, owners: Mapping[int, dict[int, int]],
    users: dict[int, int],
) -> CardPart:  # fmt: skip
    index = state.index
    is_instance = index in reading.instances
    is_unknown = index in reading.without_utilization
    utilisation: int | None = None if is_unknown else state.ce_util * 10
    for detail in reading.details.get(index, ()) if is_instance else ():
        if detail.name == "sm_active":
            utilisation = round(detail.value * 10 / PER_PERCENT)
    return CardPart(
        reading.multiprocessors.get(index, 0) if is_instance else 1,
        owners.get(index) or {job: 1 for job in users if job},
        users,
        utilisation,
        index not in reading.without_process_utilization,
        # NVML lists the processes of an instance, so one of unknown utilisation is not busy.
        bool(users) or (not is_instance if utilisation is None else utilisation > 0),
    )


def _join_parts(parts: list[CardPart], whole: int) -> CardUse:
    """Return the use of a card. whole: weight of all possible parts, 0 if unknown."""
    if not all(part.weight for part in parts):
        parts, whole = [part._replace(weight=1) for part in parts], 0
    whole = max(whole, sum(part.weight for part in parts)) if whole or len(parts) > 1 else 0
    owners: dict[int, int] = {}
    activity: dict[int, int] = {}
    for part in parts:
        held = sum(part.owners.values()) if whole else _UNIT
        for job, count in part.owners.items():
            owners[job] = owners.get(job, 0) + _UNIT * part.weight * count // held
        for job, utilisation in (part.find_activity() or {}).items():
            activity[job] = activity.get(job, 0) + utilisation * part.weight
    return CardUse(
        owners,
        activity,
        activity.pop(0, 0),
        any(part.is_busy for part in parts),
        _UNIT * whole,
        all(part.find_activity() is not None for part in parts),
    )


def make_card_use(use: CardUse, seen: Mapping[int, int], span: int) -> DomainUse:
    """Return the use of a card for the split.

    seen: us on this node, by job. A card of one job belongs wholly to it. Several jobs share a card
    by their activity, or by their allocations if activity is unknown.
    """
    owners = {job: count for job, count in use.owners.items() if job in seen}
    if not owners:
        return DomainUse({}, int(use.is_busy), 1)
    whole = max(use.whole, sum(owners.values()))
    held = {job: seen[job] * count // whole for job, count in owners.items()}
    if len(owners) == 1 and not use.whole:
        ((job, _),) = owners.items()
        return DomainUse({job: DomainClaim(1, held[job], 1, 1)}, 1, span)
    activity = {job: use.activity.get(job, 0) for job in owners}
    busy = sum(activity.values()) + use.others
    if use.is_known and (busy or not use.is_busy):
        claims = {job: DomainClaim(own, held[job], own, own) for job, own in activity.items()}
        return DomainUse(claims, busy, span)
    parts = sum(owners.values())
    claims = {job: DomainClaim(count, held[job], 0, parts) for job, count in owners.items()}
    return DomainUse(claims, parts, span)


def list_processes(node: Node) -> Iterator[ProcessOfJob]:
    """Yield the processes in the cgroups of jobs."""
    for directory in known_directories(node, _V1):
        for pid in islice(list_pids(node, directory.path), _MOST_PIDS):
            try:
                uid = node.owner(f"proc/{pid}")
            except CcagentError:
                continue
            yield pid, directory.job, uid


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


def _is_working(reading: GpuReading, index: int) -> bool:
    """Return whether a card has a utilisation, or processes."""
    return any(card.ce_util > 0 for card in reading.cards if card.index == index) or any(
        use.index == index for uses in reading.processes.values() for use in uses
    )


class CardSource(EnergySource):
    """Counters of cards. The power of a card without a counter is integrated.

    reading: state of the cards at the last reading, None without cards. meters: index of the card
    whose meter includes the power of a card without one.
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
        self._meter_of: dict[str, int] = {}
        self.reading: GpuReading | None = None
        self.meters: dict[int, int] = {}

    def checks(self, node: Node) -> Iterator[Check]:
        """Return the checks of the vendors' libraries."""
        from ccagent.machine.requirements import check_vendors

        yield from check_vendors(node, self._settings.gpu_vendors)

    def prepare_reading(self, node: Node) -> None:
        """Start the calls of the libraries. They run while files are read."""
        self._was_asked = False
        if self._gpus is None:
            if not is_any_present(node, self._settings.gpu_vendors):
                return
            self._gpus = self._settings.make_gpus(node)
        has_instances = self.reading is not None and self.reading.instances
        self._gpus.ask("read", ["energy", "sm_active"] if has_instances else ["energy"])
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
                if detail.name == "energy" and 0 < detail.value < _MOST_MILLIJOULES:
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
        has_meter = counted | {n for n, one in self._integrals.items() if one.moment >= 0}
        self._find_meters(reading, has_meter)
        return found | self._find_unknown(reading, found, has_meter)

    def _find_meters(self, reading: GpuReading, has_meter: set[int]) -> None:
        """Find the card of each module that measures all of them: the first with a meter."""
        for index in sorted(has_meter, reverse=True):
            if index in reading.modules:
                self._meter_of[reading.modules[index]] = index
        self.meters = {
            index: meter
            for index, module in reading.modules.items()
            if module != UNKNOWN_MODULE
            and (meter := self._meter_of.get(module, index)) != index
            and reading.modules.get(meter) == module
        }

    def _find_unknown(
        self, reading: GpuReading, found: dict[EnergyDomain, MeasuredEnergy], has_meter: set[int]
    ) -> dict[EnergyDomain, MeasuredEnergy]:
        """Return the flaws of cards that work without a power: it is unknown, not zero."""
        flaws: dict[EnergyDomain, MeasuredEnergy] = {}
        for card in reading.cards[:_MOST_CARDS]:
            if card.index in reading.instances or card.index in self.meters:
                continue
            domain = EnergyDomain("card", card.index)
            energy = found.get(domain)
            flaw = ""
            if reading.modules.get(card.index) == UNKNOWN_MODULE:
                flaw = "it shares its power with an unknown other die"
            elif not _is_working(reading, card.index):
                continue
            elif card.index not in has_meter and not card.failing:
                flaw = "it works, but reports neither energy nor power"
            elif energy is not None and not energy.energy and not energy.flaw:
                flaw = "it works, but its counter stands still"
            if flaw:
                flaws[domain] = MeasuredEnergy(0, 0.0, self.name, flaw=flaw)
        return flaws

    def close(self) -> None:
        """Stop the processes of the libraries."""
        if self._gpus is not None:
            self._gpus.close()


class ApuSockets:
    """Finds the sockets of APUs by files of PCI devices and NUMA nodes, once per card."""

    def __init__(self) -> None:
        self._known: dict[str, int | None] = {}

    def find(self, node: Node, reading: GpuReading) -> dict[int, int]:
        """Return the index of the first card of each APU by socket."""
        found: dict[int, int] = {}
        for card in sorted(reading.cards, key=lambda card: -card.index):
            address = reading.addresses.get(card.index, "")
            if address not in self._known:
                self._known[address] = _find_socket(node, address)
            socket = self._known[address]
            if socket is not None:
                found[socket] = card.index
        return found


def _find_socket(node: Node, address: str) -> int | None:
    """Return the socket of an APU; None for another card, or if it is unknown."""
    domain, _, rest = address.lower().partition(":")
    device = f"sys/bus/pci/devices/{domain[-4:]}:{rest}"
    try:
        if node.read(f"{device}/device").strip() not in _APU_DEVICES:
            return None
        number = max(0, read_parsed(node, f"{device}/numa_node", parse_topology_id))
        path = f"sys/devices/system/node/node{number}/cpulist"
        return read_socket(node, read_parsed(node, path, parse_cpu_list)[0])
    except (CcagentError, IndexError):
        return None


def join_apus(measured: Measured, apus: Mapping[int, int]) -> Measured:
    """Return the energies with one for each APU: that of its card, as energy of its package.

    apus: card by socket. A package remains if its card has no energy.
    """
    joined = dict(measured)
    for socket, card in apus.items():
        energy = joined.pop(EnergyDomain("card", card), None)
        package = joined.get(EnergyDomain("package", socket))
        if energy is not None and (package is None or package.flaw or not energy.flaw):
            joined[EnergyDomain("package", socket)] = energy
            joined.pop(EnergyDomain("package", ALL_SOCKETS), None)
    return joined


def read_utilisation(reading: GpuReading, card: int, meters: Mapping[int, int]) -> float | None:
    """Return the mean utilisation of an APU's partitions, 0 to 1; None if unknown.

    meters: card by index of a further partition.
    """
    parts = [one for one in reading.cards if meters.get(one.index, one.index) == card]
    if any(one.index in reading.without_utilization for one in parts):
        return None
    return sum(one.ce_util for one in parts) / 100 / max(1, len(parts))


def use_of_apu(cores: DomainUse, card: DomainUse, utilisation: float | None) -> DomainUse:
    """Return the use of an APU by its cores and its GPU.

    cores, card: use of each. utilisation: of the GPU, 0 to 1. The active power of the GPU and the
    cores is not measured apart: the fully used GPU takes `_GPU` times that of all cores. The bounds
    span `_LEAST_GPU` to `_MOST_GPU`. Idle energy is halved between cores and GPU.
    """
    busy = cores.busy / max(1, cores.held)
    shares = [0.0, 0.5, 1.0]
    if not card.busy or utilisation == 0:
        shares = [0.0]
    elif utilisation is not None:
        shares = [gpu * utilisation / (gpu * utilisation + busy)
                  for gpu in (_LEAST_GPU, _GPU, _MOST_GPU)]  # fmt: skip
    claims: dict[int, DomainClaim] = {}
    nothing = DomainClaim(0, 0, 0, 0)
    for job in {*cores.claims, *card.claims}:
        first, second = cores.claims.get(job, nothing), card.claims.get(job, nothing)
        own, least, most = (
            [
                share * other / max(1, card.busy) + (1 - share) * one / max(1, cores.busy)
                for share in shares
            ]
            for one, other in (
                (first.busy, second.busy), (first.least, second.least), (first.most, second.most),
            )
        )  # fmt: skip
        held = first.held / max(1, cores.held) + second.held / max(1, card.held)
        claims[job] = DomainClaim(
            round(_APU_SCALE * own[len(own) // 2]),
            round(_APU_SCALE * held / 2),
            int(_APU_SCALE * min(least)),
            min(_APU_SCALE, round(_APU_SCALE * max(most))),
        )
    is_busy = cores.busy > 0 or shares[-1] > 0
    return DomainUse(claims, _APU_SCALE if is_busy else 0, _APU_SCALE)
