"""Energy meter of a node: sources, snapshots of jobs, and the ledger."""

from __future__ import annotations

from contextlib import nullcontext
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ccagent.agents.base import read_state, write_state
from ccagent.agents.energy.accounts import (
    NODE_METER,
    DomainKind,
    EnergyDomain,
    JobAccount,
    NodeAccount,
)
from ccagent.agents.energy.cards import (
    ApuSockets,
    CardOwners,
    CardSource,
    CardUse,
    join_apus,
    make_card_use,
    read_utilisation,
)
from ccagent.agents.energy.ended_jobs import EndedJob, EndedJobs, EndedTimes
from ccagent.agents.energy.idle_power import IdleFloor
from ccagent.agents.energy.job_states import JobState, NodeSnapshot, NodeUse, StateReader
from ccagent.agents.energy.ledger import Ledger, TickTotals
from ccagent.agents.energy.sources import EnergySource, Kept, Measured, Sources
from ccagent.agents.energy.sources.rapl import RaplSource
from ccagent.agents.metrics.outputs import ClockGuard
from ccagent.log import logger
from ccagent.machine.background import Poller
from ccagent.machine.job_energy import latest_energy, publish_energy
from ccagent.machine.node import BOOT_ID, Node

if TYPE_CHECKING:
    from ccagent.agents.energy import EnergySettings
    from ccagent.agents.energy.accounts import DomainUse


LIMIT = 64 * 1024 * 1024
_LATEST = 1e11
"""Upper limit for seconds since 1970: the year 5138."""
_MOST_IDLE = 1e6
_MOST_SUM = 1e18
_OTHERWISE = "the accounts of jobs start at 0"

_SKEW = 2.0
"""Maximum seconds between readings of one tick."""
_MOST_OWED = 5
"""Maximum excess of the parts over the node, in ticks of energy. More is no timing error."""
_LONGEST_DOWN = 600.0
"""Maximum gap between two processes in seconds. In longer gaps, jobs may start and end unseen."""


class KeptDomain(msgspec.Struct, frozen=True):
    """Idle power of a domain in W: idle windows, and bounds and regression under load."""

    kind: DomainKind
    number: int
    windows: list[float] = []
    bounds: tuple[float, float] | None = None
    sums: list[float] = []


class EnergyState(msgspec.Struct, frozen=True, kw_only=True):
    """The state. boot: boot id; after another boot, readings and accounts of jobs are outdated.

    moment: last tick in seconds since boot. states: jobs at that tick. busy: us by cpu. counters:
    last readings by source. ended: jobs with unsent records.
    """

    boot: str
    moment: float
    jobs: list[JobAccount]
    node: NodeAccount
    ended: list[JobAccount] = []
    idle: list[KeptDomain] = []
    states: dict[int, JobState] = {}
    busy: dict[int, int] = {}
    counters: dict[str, Kept] = {}


def load_state(path: str) -> EnergyState | None:
    """Read the state file; None without a usable one."""
    state = read_state(path, EnergyState, LIMIT, _OTHERWISE)
    if state is None or _is_possible(state):
        return state
    logger.warning("state-file %s: damaged; %s", path, _OTHERWISE)
    return None


def _is_possible(state: EnergyState) -> bool:
    """Return whether the numbers are plausible: a damaged file may contain any number, or NaN."""
    accounts = (*state.jobs, *state.ended)
    times = (
        state.moment,
        *(time for account in accounts for time in (account.first, account.last)),
    )
    powers = (watts for idle in state.idle for watts in (*idle.windows, *(idle.bounds or ())))
    sums = (each for idle in state.idle for each in idle.sums)
    if not all(0 <= each < _MOST_SUM for each in sums):
        return False
    return all(0 <= time < _LATEST for time in times) and all(0 <= w < _MOST_IDLE for w in powers)


class EnergyTick(NamedTuple):
    """Result of a tick. is_blind: no energy is known. absent: reasons for missing sources."""

    totals: TickTotals
    seconds: float
    errors: list[str]
    absent: dict[str, str]
    is_blind: bool


class EnergyMeter:
    """Reads all sources once per tick and adds the energy to the ledger."""

    def __init__(self, settings: EnergySettings) -> None:
        self.settings = settings
        self.cards = CardSource(settings)
        self.sources = Sources(make_sources(settings, self.cards))
        ratio = settings.ratio
        ratios: dict[DomainKind, float] = {
            "package": ratio, "dram": settings.memory_ratio, "card": ratio, "node": ratio,
        }  # fmt: skip
        idle: dict[DomainKind, float] = {
            "package": settings.idle_package,
            "dram": settings.idle_dram,
            "card": settings.idle_card,
        }
        self.ledger = Ledger(IdleFloor(idle, ratios), ratios)
        self.ended = EndedJobs(settings)
        self.is_clock_steady = True
        self.last: EnergyTick | None = None
        self.use: NodeUse | None = None
        self._states = StateReader()
        self._owners = CardOwners(settings.scontrol, settings.squeue)
        self._times = EndedTimes()
        self._apus = ApuSockets()
        self._clock = ClockGuard()
        self._before: NodeSnapshot | None = None
        self._poller: Poller | None = None
        self._boot = ""
        self._is_open = False
        self._is_only_sample = False

    def open(self, node: Node, *, is_only_sample: bool = False) -> None:
        """Take the first reading, or continue after that of an earlier process."""
        self._is_only_sample = is_only_sample
        self._is_open = True
        for source in self.sources.all:
            source.is_patient = is_only_sample
        self._boot = node.read_text(BOOT_ID)
        kept = None
        if self.settings.state_file and not is_only_sample:
            kept = load_state(self.settings.state_file)
        is_continued = kept is not None and self._restore(node, kept)
        if not is_continued:
            self.sources.read(node)
        state = self._states.read(node)
        self._times.read(node, state, state)
        if is_continued and kept is not None:
            self._before = NodeSnapshot(
                kept.moment, kept.states, kept.busy, state.sockets, state.memory
            )
        else:
            self._before = state
            for number in state.jobs:
                self._adopt(number, node.clock.time(), state.moment, kept)
        self._watch(node)

    def tick(self, node: Node) -> EnergyTick:
        """Read all sources, and add the energy since the last tick to the ledger."""
        if not self._is_open:
            self.open(node)
        with self._poller.lock if self._poller is not None else nullcontext():
            readings = self.sources.read(node)
        if self._poller is not None:
            self._poller.note()
        state = self._states.read(node)
        before, self._before = self._before or state, state
        now = node.clock.time()
        self.is_clock_steady = self._clock.accepts(now, node.clock.monotonic())
        times = self._times.read(node, before, state)
        use = self.use = NodeUse(before, state, times)
        cards = self._read_cards(node)

        def use_of_card(index: int) -> DomainUse:
            seen = {number: span.seen for number, span in use.jobs.items()}
            # A card with unknown state may be busy: its power is not idle power.
            card = cards.get(index) or CardUse({}, {}, 0, is_busy=True)
            return make_card_use(card, seen, use.span)

        measured = check_spans(readings.measured, use.span / 1e6)
        reading = self.cards.reading
        if reading is not None and (apus := self._apus.find(node, reading)):
            measured = join_apus(measured, apus)
            meters = self.cards.meters
            use.apus = {
                socket: (use_of_card(card), read_utilisation(reading, card, meters))
                for socket, card in apus.items()
            }
        totals = self.ledger.add_tick(use, measured, use_of_card, now)
        self._end_jobs(node, state)
        publish_energy(
            self.ledger.snapshot(self.settings.counter_error, self.settings.estimate_error)
        )
        self._watch(node)
        errors = [*readings.errors, *self._states.errors, *self._times.errors]
        if self.ledger.flaws:
            domain, flaw = next(iter(self.ledger.flaws.items()))
            errors.append(f"{domain}: no energy since the last sample: {flaw}")
        meter = measured.get(NODE_METER)
        owed = -self.ledger.node.carried
        if meter is not None and owed > _MOST_OWED * meter.energy:
            errors.append(
                "node: its meter shows less than packages, memory and cards together, by"
                f" {owed / 1e6:.0f} J so far; is it a meter of the whole node?"
            )
        is_blind = not totals.measured
        self.last = EnergyTick(totals, use.span / 1e6, errors, readings.absent, is_blind)
        return self.last

    def take_ended(self, node: Node) -> list[EndedJob]:
        """Return the ended jobs with a complete record."""
        return self.ended.take(node, waits=not self._is_only_sample)

    def save(self) -> None:
        """Write the state file, if one is configured."""
        if self.settings.state_file and self._is_open and not self._is_only_sample:
            write_state(self.settings.state_file, self._make_state())

    def _make_state(self) -> EnergyState:
        snapshot, ledger, floor = self._before, self.ledger, self.ledger.floor
        return EnergyState(
            boot=self._boot,
            moment=snapshot.moment if snapshot is not None else 0.0,
            jobs=[*ledger.jobs.values()],
            ended=self.ended.accounts,
            node=ledger.node,
            idle=[
                KeptDomain(
                    domain.kind,
                    domain.number,
                    floor.windows.get(domain, []),
                    (load.least, load.most) if isfinite(load.most) else None,
                    fit.sums if (fit := floor.fits.get(domain)) is not None else [],
                )
                for domain, load in floor.loads.items()
            ],
            states=snapshot.jobs if snapshot is not None else {},
            busy=snapshot.busy if snapshot is not None else {},
            counters={source.name: source.keep() for source in self.sources.all},
        )

    def describe(self) -> dict[str, Any]:
        """Return sources, flaws and the energy of jobs for `ccagent status --json` and `job`."""
        last, energy = self.last, latest_energy()
        measured = {} if last is None else last.totals.measured
        return {
            "jobs": len(self.ledger.jobs),
            "microjoules": {str(domain): energy for domain, energy in measured.items()},
            "unknown": {str(domain): flaw for domain, flaw in self.ledger.flaws.items()},
            "accounts": {
                str(number): {
                    "joules": sum(job.parts.values()) / 1e6,
                    "least": job.interval.least,
                    "most": job.interval.most,
                    "coverage": job.coverage,
                }
                for number, job in (energy.jobs.items() if energy is not None else ())
            },
        }

    def close(self) -> None:
        """Stop the thread and close the sources."""
        if self._poller is not None:
            self._poller.close()
        self.sources.close()
        self.ended.close()
        publish_energy(None)

    def _watch(self, node: Node) -> None:
        """Start a thread to poll the sources that need it between ticks."""
        interval = self.sources.poll_interval
        if not interval:
            return
        if self._poller is None:
            every = self.settings.every
            # With short enough ticks no thread is needed. Meters of power always need it.
            if every is not None and every.seconds <= interval:
                return
            self._poller = Poller(lambda: self.sources.poll(node), interval, "energy meters")
            self._poller.start()
        self._poller.interval = interval

    def _read_cards(self, node: Node) -> dict[int, CardUse]:
        reading = self.cards.reading
        if reading is None or not reading.cards:
            return {}
        return self._owners.read(node, reading, self.cards.meters)

    def _end_jobs(self, node: Node, state: NodeSnapshot) -> None:
        """Close the accounts of ended jobs.

        With an incomplete list of jobs, no job counts as ended.
        """
        for number in [*self.ledger.jobs]:
            account = self.ledger.jobs[number]
            job = state.jobs.get(number)
            if job is not None:
                if not account.user and job.uid >= 0:
                    account.user = node.user(job.uid)
            elif state.is_complete:
                self.ended.add(self.ledger.jobs.pop(number), state.moment)

    def _adopt(self, number: int, time: float, moment: float, kept: EnergyState | None) -> None:
        """Open the account of an older job, or continue the account of an earlier process."""
        account = self.ledger.jobs.get(number)
        if account is None:
            self.ledger.jobs[number] = JobAccount(job=number, first=time, is_adopted=True)
        elif kept is not None:
            account.seconds += max(0, round((moment - kept.moment) * 1e6))

    def _restore(self, node: Node, kept: EnergyState) -> bool:
        """Take over the state of an earlier process. Return whether its readings continue."""
        # Idle power belongs to the hardware, so any boot may have it.
        for idle in kept.idle:
            domain = EnergyDomain(idle.kind, idle.number)
            self.ledger.floor.restore(domain, idle.windows, idle.bounds, idle.sums)
        self.ledger.node = kept.node
        is_same_boot = bool(self._boot) and kept.boot == self._boot
        now = node.clock.uptime()
        for account in kept.ended if is_same_boot else [*kept.ended, *kept.jobs]:
            self.ended.add(account, now)
        if not is_same_boot:
            return False
        self.ledger.jobs = {account.job: account for account in kept.jobs}
        if not 0 <= now - kept.moment <= _LONGEST_DOWN:
            return False
        for source in self.sources.all:
            source.restore(kept.counters.get(source.name, {}))
        return True


def check_spans(measured: Measured, seconds: float) -> Measured:
    """Return the energies, with a flaw for energies of another interval than the tick.

    After an outage a counter has the energy of several ticks, and the jobs of that time are
    unknown.
    """
    tolerance = max(_SKEW, seconds / 4)
    return {
        domain: energy
        if energy.flaw or abs(energy.seconds - seconds) <= tolerance
        else energy._replace(
            energy=0, flaw=f"the reading covers {energy.seconds:.0f} s, the tick {seconds:.0f} s"
        )
        for domain, energy in measured.items()
    }


def make_sources(settings: EnergySettings, cards: CardSource) -> list[EnergySource]:
    """Return the configured sources in order of preference."""
    sources: list[EnergySource] = []
    if settings.rapl != "off":
        sources.append(RaplSource(settings.rapl))
    if settings.gpu_vendors:
        sources.append(cards)
    if settings.meters:
        from ccagent.agents.energy.sources.meters import (
            DcmiSource,
            HwmonEnergySource,
            PmCountersSource,
        )

        if "pm-counters" in settings.meters:
            sources.append(PmCountersSource())
        if "hwmon" in settings.meters:
            sources.append(HwmonEnergySource())
        if "dcmi" in settings.meters:
            limit = settings.dcmi_time_limit.seconds
            sources.append(DcmiSource(settings.dcmi_command, settings.dcmi_every.seconds, limit))
    return sources
