"""The additional command `ccagent jobio show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ccagent.config.command_options import Common, add_common_options, make_group
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.config.configuration import Configuration
    from ccagent.config.options import Options


def extend_command(
    command: click.Command, configure: Callable[[Options], Configuration]
) -> click.Command:
    """Return the agent's command as a group that contains `show`.

    configure: returns the configuration of the agent.
    """
    group = make_group(command)

    @group.command()
    @click.option("--job", type=click.IntRange(min=0), help="Only this job; 0: outside of jobs.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON with all counters.")
    @add_common_options
    def show(job: int | None, as_json: bool, common: Common) -> None:
        """Show the I/O of each job by mount, and its network traffic.

        The counters start at 0 when the programs are loaded. The exit status is 1 if the programs
        are not loaded, or this user may not read them.
        """
        from ccagent.agents.jobio.agent import JobIoSettings
        from ccagent.agents.jobio.usage import read_totals, totals_document, totals_text

        configuration = configure(common.options)
        settings = configuration.agents["jobio"]
        if not isinstance(settings, JobIoSettings):
            raise ConfigurationError(f"{configuration.place}: agents.jobio: another agent's")
        node = configuration.settings.make_node()
        mounts, network, lost = read_totals(node, settings.directory, job)
        if as_json:
            import json

            click.echo(json.dumps(totals_document(mounts, network, lost)))
            return
        click.echo(totals_text(mounts, network), nl=False)
        if lost:
            click.echo(f"ccagent: {lost} calls are not counted: the table was full", err=True)

    return group
