"""The commands `ccagent agents` and `ccagent sinks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ccagent.commands.command_options import HelpfulGroup, add_common_options
from ccagent.commands.loading import load
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from ccagent.commands.command_options import Common


@click.command()
def agents() -> None:
    """List the agents."""
    from ccagent.config.registry import agent_class, agent_names

    for name in agent_names():
        _print_entry(name, agent_class(name))


@click.group(cls=HelpfulGroup, invoke_without_command=True)
@add_common_options
@click.pass_context
def sinks(ctx: click.Context, /, common: Common) -> None:
    """List the kinds of sinks, by the scheme of their URL; or test one."""
    del common  # the sub-command reads these options
    from ccagent.config.registry import transport_class, transport_names

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
    from ccagent.commands.options import sinks_of
    from ccagent.commands.sink_probe import try_sink
    from ccagent.config.settings import nearest

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
    first_line = (described.__doc__ or "").strip().partition("\n")[0]
    click.echo(f"{name:10} {first_line}")
