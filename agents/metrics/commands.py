"""Additional options of the command `ccagent metrics`, and its list of metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ccagent.config.command_options import take_common
from ccagent.errors import CcagentError, ConfigurationError, UnparsableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.agents.metrics.agent import MetricsAgent
    from ccagent.agents.metrics.readers.base import Reader
    from ccagent.config.configuration import Configuration
    from ccagent.config.options import Options
    from ccagent.machine.node import Node


_BETWEEN = 0.05


def format_metrics(agent: MetricsAgent, node: Node) -> str:
    """Return a table: name, unit, type, source, and availability or the reason without it."""
    rows = [("metric", "unit", "type", "here", "source")]
    agent.custom.begin(node)
    everything: set[str] = set()
    found = [_Found(reader) for reader in agent.readers]
    for each in found:
        each.read(node)
    # Shares of time exist from the second reading on.
    node.clock.sleep(_BETWEEN)
    for each in found:
        each.read(node)
        everything |= each.seen
        rows += (_row(agent, name, each.state(name)) for name in sorted(each.reader.metrics))
    everything |= {each.metric for each in agent.collect_custom(node, waits=True)}
    find_missing = agent.custom.find_missing(everything)
    for name in sorted(agent.custom.metrics):
        operands = ", ".join(sorted(find_missing.get(name, ())))
        rows.append(_row(agent, name, f"no: there is no {operands}" if operands else "yes"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:{widths[0]}}  {unit:{widths[1]}}  {kind:{widths[2]}}  {here}  ({source})"
        for name, unit, kind, here, source in rows
    )


class _Found:
    """The available metrics of a reader on this machine, and the reasons for missing ones."""

    def __init__(self, reader: Reader[Any]) -> None:
        self.reader = reader
        self.seen: set[str] = set()
        self._reason = ""
        reader.wanted = frozenset(reader.metrics)
        reader.is_patient = True

    def read(self, node: Node) -> None:
        """Read once, unless an earlier reading failed."""
        if self._reason:
            return
        try:
            self.seen |= {each.metric for each in self.reader.read(node)}
        except CcagentError as error:
            self._reason = str(error)

    def state(self, name: str) -> str:
        """Return "yes", or "no" with the reason, for a metric."""
        if name in self.seen:
            return "yes"
        errors = self.reader.errors[0] if self.reader.errors else "not on this machine"
        return f"no: {self.reader.absent.get(name, self._reason or errors)}"


def _row(agent: MetricsAgent, name: str, here: str) -> tuple[str, str, str, str, str]:
    metric, output = agent.metrics[name], agent.outputs.get(name)
    return (
        name if output is None else output.name,
        metric.unit if output is None else output.unit,
        metric.type,
        f"{here}, not sent" if output is None else here,
        metric.source,
    )


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
        **options: Any,
    ) -> None:
        if not (is_list or is_config or is_store or merged):
            take_sample(**options)
            return
        if merged:
            _print_config(_read_merged(merged), is_store=is_store)
            return
        _show_metrics(configure(take_common(options).options), is_list=is_list, is_store=is_store)

    params = [*_make_options(), *command.params]
    return click.Command(command.name, callback=run, params=params, help=command.help)


def _make_options() -> list[click.Option]:
    return [
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


def _show_metrics(configuration: Configuration, *, is_list: bool, is_store: bool) -> None:
    """Print the list of metrics, or a configuration of ClusterCockpit."""
    from ccagent.agents.metrics.agent import MetricsAgent
    from ccagent.agents.metrics.settings import MetricsSettings

    settings = configuration.agents[MetricsAgent.name]
    if not isinstance(settings, MetricsSettings):
        raise ConfigurationError(f"{configuration.place}: agents.metrics: another agent's")
    node = configuration.settings.make_node()
    agent = MetricsAgent(settings, frozenset({"line"}))
    if is_list:
        click.echo(format_metrics(agent, node))
    else:
        from ccagent.agents.metrics.cluster_config import cluster_config

        _print_config(cluster_config(agent, node), is_store=is_store)
    agent.close()


def _read_merged(paths: tuple[str, ...]) -> dict[str, Any]:
    """Read and merge the files of several nodes. Raise ConfigurationError for a bad file."""
    import json
    from pathlib import Path

    from ccagent.agents.metrics.cluster_config import merge_clusters

    clusters: list[dict[str, Any]] = []
    for path in paths:
        try:
            clusters.append(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"--merge {path}: {error}") from error
    try:
        return merge_clusters(clusters)
    except (AttributeError, KeyError, TypeError, UnparsableError) as error:
        raise ConfigurationError(
            f"--merge: a file is no output of --cluster-config: {error!r}"
        ) from error


def _print_config(cluster: dict[str, Any], *, is_store: bool) -> None:
    import json

    from ccagent.agents.metrics.cluster_config import store_config

    click.echo(json.dumps(store_config(cluster) if is_store else cluster, indent=2))
