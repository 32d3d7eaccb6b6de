"""Additional options of the command `ccagent metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ccagent.commands.command_options import take_common
from ccagent.errors import ConfigurationError, UnparsableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.commands.options import Options
    from ccagent.config.configuration import Configuration


_SCRAPES = ("prometheus", "openmetrics")


def extend_command(
    command: click.Command, configure: Callable[[Options], Configuration]
) -> click.Command:
    """Return the agent's command with `--list` and `--cluster-config`.

    configure: returns the configuration of the agent.
    """
    take_sample = command.callback
    if take_sample is None:
        raise RuntimeError("the command does nothing")

    def run(
        *,
        is_list: bool,
        is_config: bool,
        is_store: bool,
        merged: tuple[str, ...],
        names: str,
        **options: Any,
    ) -> None:
        if options.get("form") in _SCRAPES:
            from ccagent.exporter.commands import print_scrape

            if options.get("every") or options.get("is_dry") or options.get("sinks"):
                raise click.UsageError(f"--format {options['form']} works only with --once")
            form = str(options["form"])
            print_scrape(take_common(options).options._replace(form=None), form, names)
            return
        if names:
            raise click.UsageError(f"--names: needs --format {' or '.join(_SCRAPES)}")
        if not (is_list or is_config or is_store or merged):
            take_sample(**options)
            return
        if merged:
            _print_config(_read_merged(merged), is_store=is_store)
            return
        from ccagent.agents.metrics.agent import MetricsAgent
        from ccagent.agents.metrics.settings import MetricsSettings

        configuration = configure(take_common(options).options)
        settings = configuration.agents[MetricsAgent.name]
        if not isinstance(settings, MetricsSettings):
            raise ConfigurationError(f"{configuration.place}: agents.metrics: another agent's")
        node = configuration.settings.make_node()
        agent = MetricsAgent(settings, frozenset({"line"}))
        if is_list:
            from ccagent.agents.metrics.listing import format_metrics

            click.echo(format_metrics(agent, node))
        else:
            from ccagent.agents.metrics.cluster_config.document import cluster_config

            _print_config(cluster_config(agent, node), is_store=is_store)
        agent.close()

    flags = [
        click.Option(
            ["--list", "is_list"],
            is_flag=True,
            help="List all metrics and whether this machine has them.",
        ),
        click.Option(
            ["--cluster-config", "is_config"],
            is_flag=True,
            help="Print metrics and topology of this node for cluster.json of cc-backend.",
        ),
        click.Option(
            ["--store-config", "is_store"],
            is_flag=True,
            help="Print the metrics of this node for cc-metric-store's configuration.",
        ),
        click.Option(
            ["--merge", "merged"],
            multiple=True,
            metavar="FILE",
            help="Merge an output of --cluster-config; repeat for each node.",
        ),
    ]
    flags.append(
        click.Option(
            ["--names"],
            default="",
            metavar="SETS",
            help="With --format prometheus: sets of names, such as node_exporter,ccagent.",
        )
    )
    params = [_with_scrapes(param) for param in command.params]
    return click.Command(command.name, callback=run, params=[*flags, *params], help=command.help)


def _with_scrapes(param: click.Parameter) -> click.Parameter:
    """Return the option `--format` with Prometheus formats added, and other options unchanged."""
    if param.name != "form":
        return param
    return click.Option(
        ["--format", "form"],
        type=click.Choice(["sonar", "line", *_SCRAPES]),
        help="Sonar JSON envelopes, line protocol, or what Prometheus would get.",
    )


def _read_merged(paths: tuple[str, ...]) -> dict[str, Any]:
    """Read and merge the files of several nodes. Raise ConfigurationError for a bad file."""
    import json
    from pathlib import Path

    from ccagent.agents.metrics.cluster_config.merge import merge_clusters

    clusters: list[dict[str, Any]] = []
    for path in paths:
        try:
            clusters.append(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"--merge {path}: {error}") from error
    try:
        return merge_clusters(clusters)
    except (AttributeError, KeyError, TypeError, UnparsableError) as error:
        raise ConfigurationError(
            f"--merge: a file is no output of --cluster-config: {error!r}"
        ) from error


def _print_config(cluster: dict[str, Any], *, is_store: bool) -> None:
    import json

    from ccagent.agents.metrics.cluster_config.document import store_config

    click.echo(json.dumps(store_config(cluster) if is_store else cluster, indent=2))
