"""The command of an agent: one sample, or samples at a cadence."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click

from ccagent.commands.command_options import add_common_options
from ccagent.commands.loading import configure_log, run_daemon

if TYPE_CHECKING:
    from ccagent.commands.command_options import Common
    from ccagent.commands.options import Options
    from ccagent.config.configuration import Configuration

HELP = {
    "sample": "Collect the processes and jobs of this node.",
    "sysinfo": "Describe the hardware and software of this node.",
    "jobs": "Collect the new and changed jobs of a Slurm cluster, on its master.",
    "cluster": "Collect the partitions and nodes of a Slurm cluster, on its master.",
    "lustre": "Collect the I/O of jobs, on a server of Lustre.",
    "metrics": "Collect metrics of this node.",
    "fast": "Collect the KPIs of this node for a FAST scheduler.",
    "energy": "Measure the energy of this node and split it between its jobs.",
    "jobio": "Collect the I/O of jobs by file system, and their network traffic.",
    "log": "Send ccagent's own warnings and errors as log messages; in the daemon.",
}

_WHERE_RECORDS_GO = """\
Records are printed to stdout, or sent to --sink, or to the sinks of the file in --config.
On a terminal a table is printed, unless --format is sonar or line.
Without --config, cluster and agent keys are read from /etc/ccagent/ccagent.toml. The sinks in
that file are only for the daemon."""

_EXTENSIONS = {
    "energy": "ccagent.agents.energy.commands",
    "fast": "ccagent.agents.fast.commands",
    "jobio": "ccagent.agents.jobio.commands",
    "lustre": "ccagent.agents.lustre.commands",
    "metrics": "ccagent.agents.metrics.commands",
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
            from ccagent.commands.one_shot import sample_once

            options, verbosity = common
            sys.exit(
                sample_once(
                    name, options, verbosity=verbosity, assignments=assignments, is_dry=is_dry
                )
            )
        from ccagent.commands.options import load_configuration

        configure_log(common.verbosity)
        assignments = (*assignments, f'every="{every}"')
        configuration = load_configuration(common.options, agent=name, assignments=assignments)
        configure_log(common.verbosity, configuration)
        run_daemon(lambda: configuration, serves_status=False)

    extension = _EXTENSIONS.get(name)
    if extension is None:
        return command

    def configure(options: Options) -> Configuration:
        from ccagent.commands.options import load_configuration

        return load_configuration(options, agent=name)

    extended: click.Command = import_module(extension).extend_command(command, configure)
    return extended
