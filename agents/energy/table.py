"""Table of a node's energy, with the fix for each missing source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.energy.accounts import NODE_METER
from ccagent.agents.energy.splitting import SYSTEM, UNALLOCATED
from ccagent.errors import CcagentError
from ccagent.log import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccagent.agents.energy.accounts import EnergyDomain
    from ccagent.agents.energy.meter import EnergyMeter, EnergyTick
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node


def format_table(node: Node, meter: EnergyMeter, tick: EnergyTick, checks: Iterable[Check]) -> str:
    """Return the table of domains, of jobs with intervals, and remarks on missing values."""
    lines = [f"energy of {node.hostname} in {tick.seconds:.1f} s", ""]
    if tick.totals.measured:
        lines += [*_domain_lines(meter, tick), "", *_job_lines(meter), ""]
        lines += [*_remarks(meter, tick), ""]
    else:
        lines += ["no energy is known: this machine has no readable source", ""]
    lines += _problem_lines(tick, checks)
    return printable_lines(lines)


def printable_lines(lines: Sequence[str]) -> str:
    """Return lines as text, without blank lines at the end."""
    text = "\n".join(printable(line) for line in lines)
    return f"{text.rstrip()}\n"


def _domain_lines(meter: EnergyMeter, tick: EnergyTick) -> Iterator[str]:
    yield f"{'domain':<12}{'J':>12}{'W':>10}{'idle W':>10}  {'system':>10}{'unallocated':>12}"
    for domain, energy in sorted(tick.totals.measured.items()):
        name = "other" if domain == NODE_METER else str(domain)
        split = tick.totals.split[domain]
        yield (
            f"{name:<12}{energy / 1e6:>12.3f}{energy / 1e6 / tick.seconds:>10.1f}"
            f"{_idle(meter, domain):>10}  {split.get(SYSTEM, 0) / 1e6:>10.3f}"
            f"{split.get(UNALLOCATED, 0) / 1e6:>12.3f}"
        )


def _idle(meter: EnergyMeter, domain: EnergyDomain) -> str:
    watts, load = meter.ledger.floor.watts(domain), meter.ledger.floor.loads.get(domain)
    if watts is not None:
        return f"{watts:.1f}"
    return "-" if load is None else f"{load.least:.0f}..{load.most:.0f}"


def _job_lines(meter: EnergyMeter) -> Iterator[str]:
    if not meter.ledger.jobs:
        yield "no Slurm job on this node"
        return
    yield (
        f"{'job':<12}{'user':<12}{'active J':>12}{'idle J':>12}{'W':>10}"
        f"  {'between (J)':<24}{'covered':>8}"
    )
    settings = meter.settings
    for job, account in sorted(meter.ledger.jobs.items()):
        least, most = account.interval(settings.counter_error, settings.estimate_error)
        yield (
            f"{job:<12}{(account.user or '-')[:11]:<12}{account.active / 1e6:>12.3f}"
            f"{account.idle / 1e6:>12.3f}{(account.power or 0) / 1e6:>10.1f}"
            f"  {f'{least:.3f} and {most:.3f}':<24}{account.coverage:>8.0%}"
        )


def _remarks(meter: EnergyMeter, tick: EnergyTick) -> Iterator[str]:
    settings = meter.settings
    if any(account.is_idle_unknown for account in meter.ledger.jobs.values()):
        yield "idle power is unknown so far: the idle J are a guess, and the interval is wide;"
        yield "    a daemon learns it while the node is idle or partly loaded, or set idle-package"
    if meter.ledger.jobs:
        yield "between: the interval of active and idle J by these assumptions:"
        yield (
            f"    watts per CPU second on one socket differ at most {settings.ratio:g}-fold,"
            f" those of memory {settings.memory_ratio:g}-fold,"
        )
        yield (
            f"    counters err by {settings.counter_error:.0%}, estimates by"
            f" {settings.estimate_error:.0%}"
        )
    if NODE_METER not in tick.totals.measured:
        yield "no meter of the whole node: the energy of fans, network and losses is unknown"


def _problem_lines(tick: EnergyTick, checks: Iterable[Check]) -> Iterator[str]:
    """Yield errors, and each missing source with its fix."""
    for error in tick.errors:
        yield f"problem: {error}"
    seen: set[str] = set()
    for check in checks:
        if check.subject in seen:
            continue
        seen.add(check.subject)
        try:
            result = check.find()
        except CcagentError as error:
            yield f"{check.subject}: {error}"
            continue
        if result is not None and result.state != "good" and result.fix:
            yield f"{check.subject}: {result.found}"
            yield f"    {result.fix}"
