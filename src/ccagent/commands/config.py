"""The commands `ccagent config`."""

from __future__ import annotations

import click

from ccagent.config.command_options import Common, HelpfulGroup, add_file_options


@click.group(cls=HelpfulGroup)
def config() -> None:
    """Check a configuration, print the defaults, import Sonar's."""


@config.command()
@click.argument("file", type=click.Path(), required=False)
@add_file_options
def check(file: str | None, common: Common) -> None:
    """Check FILE and its conf.d; without FILE /etc/ccagent/ccagent.toml.

    If the configuration is invalid, prints a line for each mistake; exit status 2.
    """
    from ccagent.config.configuration import check_files
    from ccagent.config.files import DEFAULT_PATH, read_files
    from ccagent.config.warnings import find_warnings, unsafe_places
    from ccagent.log import printable

    if file is not None and common.options.path is not None:
        raise click.UsageError("FILE and --config exclude each other")
    files = read_files(file or common.options.path or DEFAULT_PATH)
    configuration = check_files(files, files.table)
    for key, reason in unsafe_places(configuration):
        click.echo(f"ccagent: warning: {key}: {printable(reason)}", err=True)
    for warning in find_warnings(configuration):
        click.echo(f"ccagent: warning: {printable(warning)}", err=True)
    click.echo(f"{printable(', '.join(files.paths))}: no errors")


@config.command()
@click.option(
    "--template", "is_template", is_flag=True, help="Print a template of a configuration file."
)
def defaults(is_template: bool) -> None:
    """Print every key of every agent and sink with its default, as TOML.

    With --template every key is commented out: the file has no effect until it is edited.
    """
    from ccagent.config.defaults import defaults, template
    from ccagent.registry import agent_names, transport_names

    text = template(agent_names(), transport_names()) if is_template else defaults()
    click.echo(text, nl=False)


@config.command("import")
@click.argument("file", type=click.Path())
def import_(file: str) -> None:
    """Convert FILE, the configuration of Sonar's daemon, to one of ccagent on stdout.

    Settings that can't be carried over are listed on stderr and in comments.
    """
    from ccagent.commands.sonar_import import import_file

    found = import_file(file)
    click.echo(found.text, nl=False)
    for note in found.notes:
        click.echo(f"ccagent: {note}", err=True)
