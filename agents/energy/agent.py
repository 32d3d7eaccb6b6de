"""The agent `energy`: energy of the node and of each of its jobs, and its points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ccagent.agents.base import Agent
from ccagent.agents.energy import EnergySettings
from ccagent.agents.energy.accounts import KEYS, JobAccount
from ccagent.log import logger
from ccagent.machine.clock import timestamp
from ccagent.records.message import FORMATS, Format, Record
from ccagent.records.points import Point, Tags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.agents.energy.ledger import Ledger
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node


JsonValue = str | int | float | bool | None

_FIRST_INTERVAL = 2.0


def make_points(
    node: Node, ledger: Ledger, settings: EnergySettings, time: float
) -> Iterator[Point]:
    """Yield the counters in J with their intervals, and the power of the last tick in W."""
    names = _Names(node, is_flat=settings.names == "flat")
    for job, account in ledger.jobs.items():
        yield from job_energy_points(names, account, settings, time)
        if account.power is not None:
            yield Point("job_power", names.of_job(job), account.power / 1e6, time)
    for name, energies in (
        ("node_energy", ledger.node.energy),
        ("node_energy_system", ledger.node.system),
        ("node_energy_unallocated", ledger.node.unallocated),
    ):
        for part, energy in energies.items():
            yield names.point(name, names.of_node(), {"part": part}, energy / 1e6, time)
    if ledger.power is not None:
        yield Point("node_power", names.of_node(), ledger.power / 1e6, time)


def make_end_points(
    node: Node, accounts: Iterable[JobAccount], settings: EnergySettings, time: float
) -> Iterator[Point]:
    """Yield the final counters of ended jobs, with intervals and coverage."""
    names = _Names(node, is_flat=settings.names == "flat")
    for account in accounts:
        yield from job_energy_points(names, account, settings, time)
        tags = names.of_job(account.job)
        yield Point("job_energy_coverage", tags, round(account.coverage, 6), time)


def job_energy_points(
    names: _Names, account: JobAccount, settings: EnergySettings, time: float
) -> Iterator[Point]:
    """Yield the counters of a job, and their intervals."""
    tags = names.of_job(account.job)
    errors = settings.counter_error, settings.estimate_error
    intervals = {"job_energy": account.interval(*errors)}
    if account.memory_most:
        intervals["job_memory_energy"] = account.memory_interval(*errors)
    for name, (least, most) in intervals.items():
        yield Point(f"{name}_least", tags, least, time)
        yield Point(f"{name}_most", tags, most, time)
    yield Point("job_energy_idle_known", tags, int(not account.is_idle_unknown), time)
    for part, share in KEYS:
        energy = account.energy.get(f"{part} {share}")
        if energy is not None:
            more: dict[str, str] = {"part": part, "share": share}
            yield names.point("job_energy", tags, more, energy / 1e6, time)


def make_end_record(
    node: Node, account: JobAccount, settings: EnergySettings, slurm_joules: int | None
) -> dict[str, JsonValue]:
    """Return the record of an ended job. Energies are in J; a value without a meter is null."""
    errors = settings.counter_error, settings.estimate_error
    interval, memory = account.interval(*errors), account.memory_interval(*errors)
    measured = account.measured
    record: dict[str, JsonValue] = {
        "cluster": node.cluster,
        "node": node.hostname,
        "job": account.job,
        "user": account.user,
        "start": timestamp(account.first),
        "end": timestamp(account.last),
        "seconds": round(account.seconds / 1e6, 3),
        "energy": round((account.active + account.idle) / 1e6, 6),
        "energy_active": round(account.active / 1e6, 6),
        "energy_idle": round(account.idle / 1e6, 6),
        "energy_least": round(interval.least, 6),
        "energy_most": round(interval.most, 6),
    }
    for part, share in KEYS:
        record[f"{part}_{share}"] = round(account.of(part, share) / 1e6, 6)
    record |= {
        "memory_least": round(memory.least, 6),
        "memory_most": round(memory.most, 6),
        "idle_known": not account.is_idle_unknown,
        "method": account.method,
        "coverage": round(account.coverage, 4),
        "measured": None if measured is None else round(measured, 4),
        "exclusive": round(account.alone, 4),
        "assumed_ratio": settings.ratio,
        "assumed_memory_ratio": settings.memory_ratio,
        "assumed_counter_error": settings.counter_error,
        "assumed_estimate_error": settings.estimate_error,
        "is_from_start": not account.is_adopted,
    }
    if settings.sacct:
        record["slurm_energy"] = slurm_joules
    return record


class _Names:
    """Builder of points. is_flat: part and share are in the name instead of tags."""

    def __init__(self, node: Node, *, is_flat: bool) -> None:
        self._is_flat = is_flat
        self._base = {"cluster": node.cluster, "hostname": node.hostname, "type": "node"}

    def of_node(self) -> dict[str, str]:
        return Tags(self._base)

    def of_job(self, job: int) -> dict[str, str]:
        return Tags({**self._base, "stype": "job", "stype-id": str(job)})

    def point(
        self, name: str, tags: dict[str, str], more: dict[str, str], value: float, time: float
    ) -> Point:
        if self._is_flat:
            return Point("_".join([name, *more.values()]), tags, value, time)
        return Point(name, Tags({**tags, **more}), value, time)


class EnergyAgent(Agent[EnergySettings]):
    """Samples energy of the node and its jobs: counters in J, a record at the end of each job."""

    name = "energy"
    formats: ClassVar[frozenset[Format]] = frozenset(FORMATS)
    extras: ClassVar[frozenset[str]] = frozenset()
    Settings = EnergySettings

    def __init__(self, settings: EnergySettings, wanted: frozenset[Format]) -> None:
        from ccagent.agents.energy.meter import EnergyMeter

        super().__init__(settings, wanted)
        self.meter = EnergyMeter(settings)

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of each source, and of the cgroups of jobs."""
        from ccagent.machine.requirements import check_cgroups

        for source in self.meter.sources.all:
            yield from source.checks(node)
        yield from check_cgroups(node, "the split of energy between jobs")

    def prepare(self, node: Node) -> float:
        """Take a first reading; energy counts from it."""
        self.meter.open(node, is_only_sample=self.is_only_sample)
        return _FIRST_INTERVAL

    def sample(self, node: Node) -> Iterator[Record]:
        """Split the energy since the last sample. Yield counters and records of ended jobs."""
        from ccagent.records.json_encoding import JsonArray

        tick = self.meter.tick(node)
        for error in tick.errors:
            logger.warning("agent energy: %s", error)
        self.is_blind = tick.is_blind
        if self.is_blind:
            logger.warning("agent energy: can't read any energy source; see ccagent doctor")
        if not self.meter.is_clock_steady:
            logger.warning("agent energy: the clock jumped; sending is paused until it is steady")
            return
        now = node.clock.time()
        ended = self.meter.take_ended(node)
        if "line" in self.wanted:
            accounts = [job.account for job in ended]
            yield from make_points(node, self.meter.ledger, self.settings, now)
            yield from make_end_points(node, accounts, self.settings, now)
        if ended and "sonar" in self.wanted:
            yield JsonArray(
                "energy",
                [
                    make_end_record(node, job.account, self.settings, job.slurm_joules)
                    for job in ended
                ],
            )

    def save_state(self) -> None:
        """Write the state file."""
        self.meter.save()

    def describe(self) -> dict[str, Any]:
        """Return the energies of the last tick, and the domains without a known energy."""
        return self.meter.describe()

    def close(self) -> None:
        """Stop the polling thread, and close the sources."""
        self.meter.close()
