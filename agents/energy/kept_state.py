"""State kept across a restart of the daemon: accounts, idle power, and last readings."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import msgspec

from ccagent.agents.energy.accounts import DomainKind, JobAccount, NodeAccount
from ccagent.agents.energy.job_states import JobState, NodeSnapshot
from ccagent.agents.energy.sources.base import Kept
from ccagent.agents.state_file import read_state
from ccagent.errors import CcagentError
from ccagent.log import logger

if TYPE_CHECKING:
    from ccagent.agents.energy.ledger import Ledger
    from ccagent.machine.node import Node

LIMIT = 64 * 1024 * 1024
_LATEST = 1e11
"""Upper limit for seconds since 1970: the year 5138."""
_MOST_IDLE = 1e6
_MOST_SUM = 1e18
_OTHERWISE = "the accounts of jobs start at 0"


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


def read_boot(node: Node) -> str:
    """Return the id of this boot; empty if it can't be read."""
    try:
        return node.read("proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()
    except CcagentError:
        return ""


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


def make_state(
    boot: str,
    ledger: Ledger,
    ended: list[JobAccount],
    snapshot: NodeSnapshot | None,
    counters: dict[str, Kept],
) -> EnergyState:
    """Return the state after a tick. ended: jobs with unsent records."""
    jobs = snapshot.jobs if snapshot is not None else {}
    floor = ledger.floor
    return EnergyState(
        boot=boot,
        moment=snapshot.moment if snapshot is not None else 0.0,
        jobs=[*ledger.jobs.values()],
        ended=ended,
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
        states=dict(jobs),
        busy=dict(snapshot.busy) if snapshot is not None else {},
        counters=counters,
    )
