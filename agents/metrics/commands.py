"""What `ccagent metrics` has besides what the command of every agent has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ccagent.command_options import take_common
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.config import Configuration
    from ccagent.options import Options


def extended(
    command: click.Command, configure: Callable[[Options], Configuration]
) -> click.Command:
    """Give the agent's command with `--list` and `--cluster-config`.

    `configure` returns the configuration of the agent.
    """
    take_sample = command.callback
    if take_sample is None:
        raise RuntimeError("the command does nothing")

    def run(*, is_list: bool, is_config: bool, **options: Any) -> None:
        if not (is_list or is_config):
            take_sample(**options)
            return
        from ccagent.agents.metrics.agent import MetricsAgent
        from ccagent.agents.metrics.settings import MetricsSettings
        from ccagent.node import Node

        configuration = configure(take_common(options).options)
        settings = configuration.agents[MetricsAgent.name]
        if not isinstance(settings, MetricsSettings):
            raise ConfigurationError(f"{configuration.place}: agents.metrics: another agent's")
        general = configuration.settings
        node = Node(hostname=general.hostname, cluster=general.cluster)
        agent = MetricsAgent(settings, frozenset({"line"}))
        if is_list:
            from ccagent.agents.metrics.listing import listed

            click.echo(listed(agent, node))
        else:
            import json

            from ccagent.agents.metrics.cluster_config import cluster_config

            click.echo(json.dumps(cluster_config(agent, node), indent=2))
        agent.close()

    flags = [
        click.Option(
            ["--list", "is_list"], is_flag=True, help="List the metrics, and what is here."
        ),
        click.Option(
            ["--cluster-config", "is_config"],
            is_flag=True,
            help="Print metrics and topology of this node for cc-backend's cluster.json.",
        ),
    ]
    return click.Command(
        command.name, callback=run, params=[*flags, *command.params], help=command.help
    )
