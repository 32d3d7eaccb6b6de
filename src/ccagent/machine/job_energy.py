"""Energy of the jobs of this node, as the agent `energy` of this process has split it last.

Other agents of the process read it; it is empty where no such agent runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class JobEnergy(NamedTuple):
    """Energy of a job so far.

    active, idle: uJ. power: uW in the last tick. coverage: share of its time with valid readings.
    """

    active: int
    idle: int
    power: int
    coverage: float


_latest: list[dict[int, JobEnergy]] = [{}]


def publish_energies(energies: Mapping[int, JobEnergy]) -> None:
    """Replace what `latest_energies` returns, in any thread."""
    _latest[0] = dict(energies)


def latest_energies() -> Mapping[int, JobEnergy]:
    """Return the energies by job id."""
    return _latest[0]
