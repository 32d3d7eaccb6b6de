"""The commands of agents; loading of configuration and log, start of the daemon."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click

from ccagent import log
from ccagent.config.command_options import Common, add_common_options
from ccagent.service.signals import CLOSED_PIPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.config.configuration import Configuration
    from ccagent.config.options import Options


def load(common: Common, *, needs_file: bool = False) -> Configuration:
    """Read the configuration, and configure the log with it."""
    from ccagent.config.options import load_configuration

    configure_log(common.verbosity)
    configuration = load_configuration(common.options, needs_file=needs_file)
    configure_log(common.verbosity, configuration)
    return configuration


def configure_log(verbosity: int, configuration: Configuration | None = None) -> None:
    """Configure the log from `-v` and, if given, from the configuration."""
    if configuration is None:
        log.configure(verbosity)
    else:
        log.configure(
            verbosity, configuration.settings.log_level, configuration.settings.log_format
        )


def run_daemon(load: Callable[[], Configuration], *, serves_status: bool) -> None:
    """Run the daemon until a signal ends it. `load` reads the configuration, also for reloads."""
    from ccagent.daemon.daemon import Daemon
    from ccagent.machine.clock import Clock

    daemon = Daemon(load, Clock(), serves_status=serves_status)
    daemon.handle_signals()
    daemon.run()
    if daemon.is_output_closed:
        sys.exit(CLOSED_PIPE)


HELP = {
    "sample": "Collect the processes and jobs of this node.",
    "sysinfo": "Describe the hardware and software of this node.",
    "jobs": "Collect new and changed jobs, on the master of Slurm.",
    "cluster": "Collect partitions and nodes, on the master of Slurm.",
    "lustre": "Collect the I/O of jobs, on a server of Lustre.",
    "metrics": "Collect metrics of this node.",
    "fast": "Collect the KPIs of this node for a FAST scheduler.",
    "energy": "Measure the energy of this node and split it between its jobs.",
    "jobio": "Collect the I/O of jobs by file system, and over networks.",
    "log": "Send ccagent's own warnings and errors, in the daemon.",
}

_WHERE_RECORDS_GO = """\
Records are printed to stdout, or sent to --sink, or to the sinks of the file in --config.
On a terminal a table is printed, unless --format is sonar or line.
Without --config, cluster and agent keys are read from /etc/ccagent/ccagent.toml. The sinks in
that file are only for the daemon."""

_EXTENSIONS = {
    "energy": ["ccagent.agents.energy.commands"],
    "fast": ["ccagent.agents.fast.commands"],
    "jobio": ["ccagent.agents.jobio.commands"],
    "lustre": ["ccagent.agents.lustre.commands"],
    "metrics": ["ccagent.agents.metrics.commands", "ccagent.exporter.commands"],
}
"""Modules whose function `extend_command` adds options or subcommands to an agent's command."""


def make_agent_command(name: str) -> click.Command:
    """Make the command of an agent."""
    summary = HELP.get(name, f"Collect one sample with the installed agent {name}.")

    @click.command(name, help=f"{summary}\n\n{_WHERE_RECORDS_GO}")
    @click.option("--once", is_flag=True, help="Take one sample (default without --every).")
    @click.option(
        "--every",
        metavar="DURATION",
        help="Sample at this interval, aligned to the clock, until interrupted: 30s, 5m, 1h.",
    )
    @click.option(
        "--dry-run",
        "is_dry",
        is_flag=True,
        help="Print the messages for each sink; send nothing and save no state.",
    )
    @click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help=f"Set a key of [agents.{name}]; repeatable.",
    )
    @add_common_options
    def command(
        once: bool, every: str | None, is_dry: bool, assignments: tuple[str, ...], common: Common
    ) -> None:
        if every and (once or is_dry):
            other = "--once" if once else "--dry-run"
            raise click.UsageError(f"{other} and --every exclude each other")
        if every and common.options.form == "table":
            raise click.UsageError("--every prints no table; 'ccagent top' shows a live one")
        if not every:
            from ccagent.commands.once import sample_once

            options, verbosity = common
            sys.exit(
                sample_once(
                    name, options, verbosity=verbosity, assignments=assignments, is_dry=is_dry
                )
            )
        configure_log(common.verbosity)
        configuration = configure(common.options, (*assignments, f'every="{every}"'))
        configure_log(common.verbosity, configuration)
        run_daemon(lambda: configuration, serves_status=False)

    def configure(options: Options, assignments: tuple[str, ...] = ()) -> Configuration:
        from ccagent.config.options import load_configuration

        return load_configuration(options, agent=name, assignments=assignments)

    extended: click.Command = command
    for module in _EXTENSIONS.get(name, ()):
        extended = import_module(module).extend_command(extended, configure)
    return extended
