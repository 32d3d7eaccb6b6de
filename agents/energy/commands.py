"""Additional options of the command `ccagent energy`, and its table of jobs."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import click

from ccagent import log
from ccagent.agents.energy.accounts import NODE_METER, SYSTEM, UNALLOCATED, EnergyDomain
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ccagent.agents.energy.meter import EnergyMeter, EnergyTick
    from ccagent.config.configuration import Configuration
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

_FORMATS = ("table", "sonar", "line")


def format_table(node: Node, meter: EnergyMeter, tick: EnergyTick, checks: Iterable[Check]) -> str:
    """Return the table of domains, of jobs with intervals, and remarks on missing values."""
    lines = [f"energy of {node.hostname} in {tick.seconds:.1f} s", ""]
    if tick.totals.measured:
        lines += [*_domain_lines(meter, tick), "", *_job_lines(meter), ""]
        lines += [*_remarks(meter, tick), ""]
    else:
        lines += ["no energy is known: this machine has no readable source", ""]
    lines += _problem_lines(tick, checks)
    text = "\n".join(map(printable, lines))
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


def extend_command(
    command: click.Command, configure: Callable[..., Configuration]
) -> click.Command:
    """Return the agent's command with `--format table` and `--seconds`.

    configure: returns the configuration of the agent for options and assignments of `--set`.
    """
    take_sample = command.callback
    if take_sample is None:
        raise RuntimeError("the command does nothing")

    def run(*, shape: str | None, seconds: float, **options: Any) -> None:
        if shape is None and not options["sinks"] and not options["path"]:
            # Sonar's format has only ended jobs. A single sample has none.
            is_table = sys.stdout.isatty() and not options["every"] and not options["is_dry"]
            shape = "table" if is_table else "line"
        if math.isnan(seconds):  # click accepts nan in any range
            raise click.BadParameter("nan is not in the range 0.1<=x<=3600", param_hint="--seconds")
        if shape != "table":
            take_sample(form=shape, **options)
            return
        if options["every"] or options["is_dry"] or options["sinks"]:
            raise click.UsageError("--format table prints one sample to standard output")
        _print_table(options, seconds, configure)

    own = [
        click.Option(
            ["--format", "shape"],
            type=click.Choice(_FORMATS),
            help="A table (on a terminal the default), Sonar JSON of ended jobs, or line protocol.",
        ),
        click.Option(
            ["--seconds"],
            type=click.FloatRange(0.1, 3600),
            default=2.0,
            show_default=True,
            help="Measure for this many seconds (for a table).",
        ),
    ]
    params = [param for param in command.params if param.name != "form"]
    return click.Command(command.name, callback=run, params=[*own, *params], help=command.help)


def _print_table(
    options: dict[str, Any], seconds: float, configure: Callable[..., Configuration]
) -> None:
    """Measure once and print the table. Exit with status 1 if no energy is known."""
    from ccagent.agents.energy import EnergySettings
    from ccagent.agents.energy.agent import EnergyAgent
    from ccagent.config.command_options import take_common

    assignments = options.pop("assignments")
    common = take_common(options)
    log.configure(common.verbosity)
    configuration = configure(common.options, assignments)
    settings = configuration.agents[EnergyAgent.name]
    if not isinstance(settings, EnergySettings):
        raise ConfigurationError(f"{configuration.place}: agents.energy: another agent's")
    node = configuration.settings.make_node()
    agent = EnergyAgent(settings, frozenset({"line"}))
    agent.is_only_sample = True
    try:
        agent.prepare(node)
        node.clock.sleep(seconds)
        tick = agent.meter.tick(node)
        click.echo(format_table(node, agent.meter, tick, agent.checks(node)), nl=False)
    finally:
        agent.close()
    sys.exit(1 if tick.is_blind else 0)
