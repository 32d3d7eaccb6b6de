"""The agent `energy`: energy of the node and of each of its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ccagent.agents.base import Agent
from ccagent.agents.energy.settings import EnergySettings
from ccagent.log import logger
from ccagent.records.message import FORMATS, Format, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

_FIRST_INTERVAL = 2.0


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
        from ccagent.machine.cgroup.checks import check_cgroups

        for source in self.meter.sources.all:
            yield from source.checks(node)
        yield from check_cgroups(node, "the split of energy between jobs")

    def prepare(self, node: Node) -> float:
        """Take a first reading; energy counts from it."""
        self.meter.open(node, is_only_sample=self.is_only_sample)
        return _FIRST_INTERVAL

    def sample(self, node: Node) -> Iterator[Record]:
        """Split the energy since the last sample. Yield counters and records of ended jobs."""
        from ccagent.agents.energy.points import make_end_points, make_end_record, make_points
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
