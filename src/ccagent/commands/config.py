"""The commands about the configuration: `ccagent config`, `agents`, `sinks` and `outbox`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ccagent.commands.agent_command import load
from ccagent.config.command_options import HelpfulGroup, add_common_options, add_file_options
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from ccagent.config.command_options import Common


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


@click.command()
def agents() -> None:
    """List the agents."""
    from ccagent.agents.base import agent_class
    from ccagent.registry import agent_names

    for name in agent_names():
        _print_entry(name, agent_class(name))


@click.group(cls=HelpfulGroup, invoke_without_command=True)
@add_common_options
@click.pass_context
def sinks(ctx: click.Context, /, common: Common) -> None:
    """List the kinds of sinks; test one."""
    del common  # the sub-command reads these options
    from ccagent.registry import transport_names
    from ccagent.transports.base import transport_class

    if ctx.invoked_subcommand is None:
        for name in transport_names():
            _print_entry(f"{name}:", transport_class(f"{name}:"))


@sinks.command()
@click.argument("sink", metavar="URL|NAME")
@add_common_options
def test(sink: str, common: Common) -> None:
    """Send a test message to a URL, or to the sink NAME of the configuration.

    Prints the receiver's answer; exit status 1 if the receiver did not accept the message.
    """
    from ccagent.config.options import sinks_of
    from ccagent.doctor.sinks import try_sink
    from ccagent.errors import nearest

    if ":" in sink:
        common = common._replace(options=common.options._replace(sinks=(sink,)))
        (sink,) = sinks_of([sink])
    configuration = load(common)
    if sink not in configuration.sinks:
        known = nearest(sink, list(configuration.sinks))
        raise ConfigurationError(f"{configuration.place}: there is no [sinks.{sink}]{known}")
    answer = try_sink(configuration, sink)
    click.echo(f"taken: {answer}" if answer else "taken")


def _print_entry(name: str, described: type) -> None:
    from ccagent.config.defaults import first_line

    click.echo(f"{name:10} {first_line(described)}")


@click.group(cls=HelpfulGroup, invoke_without_command=True)
@add_file_options
@click.pass_context
def outbox(ctx: click.Context, /, common: Common) -> None:
    """Show the queue of each sink, and its dead letters.

    Exit status 1 if one can't be read.
    """
    if ctx.invoked_subcommand is None:
        from ccagent.queue.commands import list_queues
        from ccagent.views.status_table import format_queues
        from ccagent.views.terminal import find_style, find_width, print_lines

        queues = list_queues(load(common, needs_file=True))
        print_lines(format_queues(queues, find_width(200), find_style()))
        if any(each.error for each in queues):
            sys.exit(1)


@outbox.command()
@add_file_options
def flush(common: Common) -> None:
    """Send the queued messages now; exit status 1 if messages remain."""
    from ccagent.queue.commands import flush

    if not flush(load(common, needs_file=True)):
        sys.exit(1)


_names = click.option(
    "--sink", "names", multiple=True, metavar="NAME", help="Select this sink; repeatable."
)
_reason = click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="Select dead letters with this text in the reason.",
)


@outbox.command()
@_reason
@_names
@add_file_options
def retry(names: tuple[str, ...], reason: str, common: Common) -> None:
    """Queue dead letters again. The daemon or `ccagent outbox flush` sends them."""
    from ccagent.queue.commands import DeadLetterSelection, retry

    count = retry(load(common, needs_file=True), DeadLetterSelection(names, reason))
    click.echo(f"queued again: {count}")


@outbox.command()
@_reason
@_names
@click.option("--all", "is_whole", is_flag=True, help="Also delete the queued messages.")
@add_file_options
def drop(names: tuple[str, ...], reason: str, is_whole: bool, common: Common) -> None:
    """Delete dead letters."""
    from ccagent.queue.commands import DeadLetterSelection, drop

    if is_whole and reason:
        raise click.UsageError("--all and --reason exclude each other")
    configuration = load(common, needs_file=True)
    click.echo(
        f"deleted: {drop(configuration, DeadLetterSelection(names, reason), is_whole=is_whole)}"
    )
