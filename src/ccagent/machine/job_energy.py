"""Latest energy of the node and its jobs, as computed by the agent `energy` of this process.

Other agents and the exporter of the process read it. It is None without this agent.
"""

from __future__ import annotations

from typing import NamedTuple


class EnergyInterval(NamedTuple):
    """Bounds of the true energy of a job in J, under the stated assumptions."""

    least: float
    most: float


class JobEnergy(NamedTuple):
    """Energy of a job so far.

    parts: uJ by part and share, such as `cpu`, `active`. power: uW in the last tick, None if
    unknown. coverage: share of the job's time with valid readings. interval, memory: of the whole,
    and of the memory alone. is_idle_known: the idle power of its domains was always known.
    """

    parts: dict[tuple[str, str], int]
    power: int | None
    coverage: float
    interval: EnergyInterval = EnergyInterval(0.0, 0.0)
    memory: EnergyInterval = EnergyInterval(0.0, 0.0)
    is_idle_known: bool = False

    def sum_of(self, share: str) -> int:
        """Return the uJ of a share, `active` or `idle`, over all parts."""
        return sum(energy for (_, each), energy in self.parts.items() if each == share)


class NodeEnergy(NamedTuple):
    """Energy since the start of the accounts, in uJ by part, with `system` and `unallocated`.

    jobs: by id. power: uW in the last tick, None if unknown.
    """

    jobs: dict[int, JobEnergy]
    whole: dict[str, int]
    system: dict[str, int]
    unallocated: dict[str, int]
    power: int | None


_latest: list[NodeEnergy | None] = [None]


def publish_energy(energy: NodeEnergy | None) -> None:
    """Set the result of `latest_energy`, in any thread. The object must not change later."""
    _latest[0] = energy


def latest_energy() -> NodeEnergy | None:
    """Return the latest energy; None without the agent `energy`."""
    return _latest[0]
