"""The commands `ccagent agents`, `ccagent sinks` and `ccagent outbox`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ccagent.commands.agent_command import load
from ccagent.config.command_options import HelpfulGroup, add_common_options, add_file_options
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from ccagent.config.command_options import Common


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
