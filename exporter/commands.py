"""The commands `ccagent export`, and the scrapes of `ccagent metrics --once`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ccagent.config.command_options import HelpfulGroup, add_file_options, take_common
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ccagent.config.command_options import Common
    from ccagent.config.configuration import Configuration
    from ccagent.config.options import Options
    from ccagent.exporter.exposition import Block
    from ccagent.exporter.settings import ExporterSettings

_SCRAPES = ("prometheus", "openmetrics")
_SET_NAMES = "Sets of names, separated by commas: ccagent, node_exporter, cgroup_exporter, dcgm,\
 lustre, ceems, jobstats, slurm-job-exporter, omnistat, slurm."


@click.group(cls=HelpfulGroup)
def export() -> None:
    """Write files for Prometheus; hash the exporter's passwords."""


@export.command()
@click.argument("directory", type=click.Path())
@click.option("--names", default="", help=_SET_NAMES)
@add_file_options
def textfile(directory: str, names: str, common: Common) -> None:
    """Write DIRECTORY/ccagent.prom for node_exporter's textfile collector, once.

    Run it from cron or a timer. The file is replaced atomically. Families named `node_*` are
    omitted: node_exporter has them.
    """
    from msgspec.structs import replace

    from ccagent.exporter.textfile import write_textfile

    configuration, settings = _read(common.options, names)
    # The file would otherwise keep the families of other, removed files.
    settings = replace(settings, exclude=(*settings.exclude, "textfile"))
    write_textfile(directory, scrape_once(configuration, settings, leaves_out=("node_",)))


@export.command()
@click.argument("file", type=click.Path(), default="-")
@click.option(
    "--from", "source", default="slurm", metavar="slurm|URL", show_default=True,
    help="Slurm's nodes, or the nodes of a metric store.",
)  # fmt: skip
@click.option("--port", default=9500, show_default=True, help="Port of the exporter.")
@click.option(
    "--metric", default="cpu_load", show_default=True,
    help="A metric that every node sends to the store.",
)  # fmt: skip
@click.option("--token-file", default="", metavar="FILE", help="File with the store's token.")
@click.option("--ca-file", default="", metavar="FILE", help="CA of the store's certificate.")
@add_file_options
def targets(
    *, file: str, source: str, port: int, metric: str, token_file: str, ca_file: str, common: Common
) -> None:
    """Write the nodes to FILE or standard output, for Prometheus' file_sd_configs.

    Run it from cron or a timer. The file is replaced atomically, and left as it is if no node is
    found.
    """
    from ccagent.config.options import load_configuration
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.targets import (
        format_targets,
        read_slurm_nodes,
        read_store_nodes,
        write_targets,
    )
    from ccagent.transports.http import HttpSettings

    configuration = load_configuration(common.options)
    cluster = configuration.settings.cluster
    if source == "slurm":
        sinfo = (configuration.table(ExporterSettings) or ExporterSettings()).sinfo
        hosts = read_slurm_nodes(configuration.settings.make_node(), sinfo)
    elif source.startswith(("http://", "https://")):
        settings = HttpSettings(url=source, token_file=token_file, ca_file=ca_file)
        hosts = read_store_nodes(settings, cluster, metric)
    else:
        raise click.UsageError(f"--from: {source!r} is neither slurm nor a URL of HTTP")
    content = format_targets(hosts, port, cluster)
    if file == "-":
        click.echo(content, nl=False)
    else:
        write_targets(file, content)


@export.command()
@click.argument("user")
def password(user: str) -> None:
    """Print a line for exporter.users-file: USER with the hash of a password.

    Ask for the password twice, or read it from standard input if that is no terminal.
    """
    from ccagent.exporter.access import make_line

    if sys.stdin.isatty():
        secret: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        secret = sys.stdin.readline().rstrip("\r\n")
    click.echo(make_line(user, secret))


def extend_command(
    command: click.Command, configure: Callable[[Options], Configuration]
) -> click.Command:
    """Return the command of the agent `metrics` with the formats of Prometheus, and `--names`.

    configure: returns the configuration of the agent. A scrape needs that of the exporter.
    """
    del configure
    take_sample = command.callback
    if take_sample is None:
        raise RuntimeError("the command does nothing")

    def run(*, names: str, **options: Any) -> None:
        form = str(options.get("form"))
        if form in _SCRAPES:
            if options.get("every") or options.get("is_dry") or options.get("sinks"):
                raise click.UsageError(f"--format {form} works only with --once")
            print_scrape(take_common(options).options._replace(form=None), form, names)
            return
        if names:
            raise click.UsageError(f"--names: needs --format {' or '.join(_SCRAPES)}")
        take_sample(**options)

    params = [_with_scrapes(param) for param in command.params]
    own = click.Option(
        ["--names"],
        default="",
        metavar="SETS",
        help="With --format prometheus: sets of names, such as node_exporter,ccagent.",
    )
    # The options of all agents begin with --once.
    params.insert([param.name for param in params].index("once"), own)
    return click.Command(command.name, callback=run, params=params, help=command.help)


def _with_scrapes(param: click.Parameter) -> click.Parameter:
    """Return the option `--format` with Prometheus formats added, and other options unchanged."""
    if param.name != "form":
        return param
    return click.Option(
        ["--format", "form"],
        type=click.Choice(["sonar", "line", *_SCRAPES]),
        help="Sonar JSON envelopes, line protocol, or what Prometheus would get.",
    )


def print_scrape(options: Options, form: str, names: str) -> None:
    """Print a scrape. form: prometheus or openmetrics.

    Raise ConfigurationError if the configuration or `names` is invalid.
    """
    from ccagent.exporter.exposition import join_openmetrics, join_text

    configuration, settings = _read(options, names)
    blocks = scrape_once(configuration, settings)
    join = join_openmetrics if form == "openmetrics" else join_text
    click.echo(join(blocks), nl=False)


def scrape_once(
    configuration: Configuration, settings: ExporterSettings, leaves_out: Collection[str] = ()
) -> list[Block]:
    """Return the families of one scrape, without those whose names start with `leaves_out`."""
    from ccagent.exporter.collector import make_collectors
    from ccagent.exporter.scraping import Scraper
    from ccagent.exporter.sources import NodeSources

    node = configuration.settings.make_node()
    sources = NodeSources(settings)
    scraper = Scraper(node, make_collectors(settings, sources))
    try:
        blocks = scraper.scrape(settings.time_limit.seconds)
    finally:
        scraper.close()
        sources.close()
    prefixes = (*leaves_out,)
    return [each for each in blocks if not (prefixes and each[0].name.startswith(prefixes))]


def _read(options: Options, names: str) -> tuple[Configuration, ExporterSettings]:
    """Return the configuration and its exporter settings; `names` replaces the sets of names."""
    from ccagent.config.options import load_configuration
    from ccagent.exporter.settings import NAME_SETS, ExporterSettings

    configuration = load_configuration(options)
    settings = configuration.table(ExporterSettings) or ExporterSettings()
    if names:
        chosen = tuple(name.strip() for name in names.split(",") if name.strip())
        if not chosen:
            raise ConfigurationError(f"--names: is empty; known sets: {', '.join(NAME_SETS)}")
        for name in chosen:
            if name not in NAME_SETS:
                from ccagent.errors import nearest

                raise ConfigurationError(
                    f"--names: {name!r} is unknown{nearest(name, [*NAME_SETS])}"
                )
        from msgspec.structs import replace

        from ccagent.exporter.settings import list_collectors

        known = {each for name in chosen for each in list_collectors(name)}
        collectors = tuple(each for each in settings.collectors if each in known)
        settings = replace(settings, names=chosen, collectors=collectors)
    return configuration, settings
