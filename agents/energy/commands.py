"""Additional options of the command `ccagent energy`."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import click

from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.commands.options import Options
    from ccagent.config.configuration import Configuration

_FORMATS = ("table", "sonar", "line")


def extend_command(
    command: click.Command, configure: Callable[[Options], Configuration]
) -> click.Command:
    """Return the agent's command with `--format table` and `--seconds`.

    configure: returns the configuration of the agent.
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
        _print_table(configure, options, seconds)

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
    params = [each for each in command.params if each.name != "form"]
    return click.Command(command.name, callback=run, params=[*own, *params], help=command.help)


def _print_table(
    configure: Callable[[Options], Configuration], options: dict[str, Any], seconds: float
) -> None:
    """Measure once and print the table. Exit with status 1 if no energy is known."""
    from ccagent.agents.energy.agent import EnergyAgent
    from ccagent.agents.energy.settings import EnergySettings
    from ccagent.agents.energy.table import format_table
    from ccagent.commands.command_options import take_common
    from ccagent.commands.loading import configure_log

    assignments = options.pop("assignments")
    common = take_common(options)
    configure_log(common.verbosity)
    configuration = _configure(configure, common.options, assignments)
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


def _configure(
    configure: Callable[[Options], Configuration], options: Options, assignments: tuple[str, ...]
) -> Configuration:
    """Return the configuration of the agent, with the keys of the command line."""
    if not assignments:
        return configure(options)
    from ccagent.commands.options import load_configuration

    return load_configuration(options, agent="energy", assignments=assignments)
