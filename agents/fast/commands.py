"""Additional commands of `ccagent fast`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ccagent.commands.command_options import add_common_options, make_group
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.agents.fast.settings import FastSettings
    from ccagent.commands.command_options import Common
    from ccagent.commands.options import Options
    from ccagent.config.configuration import Configuration
    from ccagent.machine.node import Node

_KEPT_WHERE = "agents.fast.state-directory"


def extend_command(
    command: click.Command, configure: Callable[[Options], Configuration]
) -> click.Command:
    """Return the agent's command as a group with `status`, `mmbwmon` and `reference`.

    configure: returns the configuration of the agent.
    """
    group = make_group(command)
    for make in (_status_command, _bandwidth_command, _reference_command):
        group.add_command(make(configure))
    return group


def _status_command(configure: Callable[[Options], Configuration]) -> click.Command:
    @click.command()
    @click.option("--json", "as_json", is_flag=True, help="As JSON.")
    @add_common_options
    def status(as_json: bool, common: Common) -> None:
        """Show the configuration in force, its sender, the last KPIs and monitored applications.

        Exit status 1 if no daemon runs, or if it has no [agents.fast].
        """
        from ccagent.agents.fast.status_text import read_details, status_text

        found = read_details(configure(common.options).settings.status_socket)
        if as_json:
            import json

            click.echo(json.dumps(found))
        else:
            click.echo(status_text(found), nl=False)

    return status


def _bandwidth_command(configure: Callable[[Options], Configuration]) -> click.Command:
    @click.command()
    @click.option("--cores", required=True, metavar="LIST", help="Cores such as 0,1 or 0-3.")
    @add_common_options
    def mmbwmon(cores: str, common: Common) -> None:
        """Measure the available memory bandwidth of cores; needs no broker.

        Exit status 1 if the measurement failed or is invalid.
        """
        from ccagent.agents.fast.bandwidth.service import measure_now
        from ccagent.agents.fast.settings import check_extra
        from ccagent.agents.fast.status_text import bandwidth_text

        check_extra("numpy", "mmbwmon")
        wanted = _core_list(cores)
        node, settings = _node_and_settings(configure(common.options))
        response = measure_now(node, wanted, settings.state_directory, ())
        click.echo(bandwidth_text(response), nl=False)
        if response.value is None or not response.is_valid:
            sys.exit(1)

    return mmbwmon


def _reference_command(configure: Callable[[Options], Configuration]) -> click.Command:
    @click.command()
    @add_common_options
    def reference(common: Common) -> None:
        """Measure and keep the bandwidth of this idle node, by number of cores.

        Takes about two seconds for each number of cores. Exit status 1 if the node is not idle.
        """
        from ccagent.agents.fast.bandwidth.reference import measure_reference, write_reference
        from ccagent.agents.fast.bandwidth.service import check_cores
        from ccagent.agents.fast.bandwidth.topology import read_cpus
        from ccagent.agents.fast.settings import check_extra
        from ccagent.errors import CcagentError
        from ccagent.service.private_directories import make_directory

        check_extra("numpy", "reference")
        node, settings = _node_and_settings(configure(common.options))
        if not settings.state_directory:
            raise ConfigurationError(f"{_KEPT_WHERE}: missing; set the directory for the reference")
        try:
            make_directory(settings.state_directory)
        except OSError as error:
            raise CcagentError(f"{settings.state_directory}: {error.strerror}") from error
        reason = check_cores(node, read_cpus(node), ())
        if reason:
            raise CcagentError(f"the node is not idle: {reason}")

        def tell(count: int, bandwidth: float, share: float) -> None:
            click.echo(f"{count:5} cores {bandwidth / 1e9:9.2f} GB/s  share {share:.2f}")

        found = measure_reference(node, tell)
        click.echo(f"kept in {write_reference(settings.state_directory, found)}")

    return reference


def _node_and_settings(configuration: Configuration) -> tuple[Node, FastSettings]:
    from ccagent.agents.fast.settings import FastSettings

    settings = configuration.agents["fast"]
    if not isinstance(settings, FastSettings):
        raise ConfigurationError(f"{configuration.place}: agents.fast: another agent's")
    return configuration.settings.make_node(), settings


def _core_list(text: str) -> list[int]:
    """Return the cores of a list such as `0,2-3`. Raise ConfigurationError if invalid."""
    from ccagent.agents.fast.messages.decoding import MOST_CORES
    from ccagent.errors import UnparsableError
    from ccagent.machine.procfs.cpulist import parse_cpu_list

    try:
        cores = parse_cpu_list(text.encode())
    except UnparsableError as error:
        raise ConfigurationError(f"--cores: {error}") from error
    if not 0 < len(cores) <= MOST_CORES:
        raise ConfigurationError(f"--cores: 1 to {MOST_CORES} cores")
    return cores
