"""The commands `ccagent outbox`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ccagent.commands.command_options import HelpfulGroup, add_file_options
from ccagent.commands.loading import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.commands.command_options import Common


@click.group(cls=HelpfulGroup, invoke_without_command=True)
@add_file_options
@click.pass_context
def outbox(ctx: click.Context, /, common: Common) -> None:
    """Show the queue of each sink and its dead letters; exit status 1 if one can't be read."""
    if ctx.invoked_subcommand is None:
        from ccagent.queue.commands import list_queues
        from ccagent.views.output import find_style, find_width, print_lines
        from ccagent.views.table.status import format_queues

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


def _add_selection(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select dead letters."""
    for option in (
        click.option(
            "--sink", "names", multiple=True, metavar="NAME", help="Select this sink; repeatable."
        ),
        click.option(
            "--reason",
            default="",
            metavar="TEXT",
            help="Select dead letters with this text in the reason.",
        ),
    ):
        function = option(function)
    return function


@outbox.command()
@_add_selection
@add_file_options
def retry(names: tuple[str, ...], reason: str, common: Common) -> None:
    """Queue dead letters again. The daemon or `ccagent outbox flush` sends them."""
    from ccagent.queue.commands import DeadLetterSelection, retry

    count = retry(load(common, needs_file=True), DeadLetterSelection(names, reason))
    click.echo(f"queued again: {count}")


@outbox.command()
@_add_selection
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
