"""Additional options and commands of `ccagent lustre`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ccagent.config.command_options import Common, add_file_options, make_group
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.config.configuration import Configuration


def extend_command(command: click.Command, configure: Callable[..., Configuration]) -> click.Group:
    """Return the agent's command with `--input` and the command `check`.

    configure: returns the configuration of the agent for options and assignments of `--set`.
    """
    take_sample = command.callback
    if take_sample is None:
        raise RuntimeError("the command does nothing")

    def run(recorded: str | None, **options: Any) -> None:
        if recorded is not None:
            import json

            options["assignments"] = (*options["assignments"], f"input={json.dumps(recorded)}")
        take_sample(**options)

    recorded = click.Option(
        ["--input", "recorded"],
        type=click.Path(),
        metavar="FILE",
        help="Read this dump of lctl get_param instead.",
    )
    command.callback, command.params = run, [recorded, *command.params]
    group = make_group(command)
    group.add_command(_make_check(configure))
    return group


def _make_check(configure: Callable[..., Configuration]) -> click.Command:
    @click.command()
    @click.option("--json", "is_json", is_flag=True, help="As JSON.")
    @click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a key of [agents.lustre]; repeatable.",
    )
    @add_file_options
    def check(is_json: bool, assignments: tuple[str, ...], common: Common) -> None:
        """Check the jobstats setup and possible data loss; exit status 1 for a problem."""
        from ccagent.agents.lustre.agent import LustreAgent, LustreSettings
        from ccagent.agents.lustre.jobstats.setup import (
            as_json,
            exit_status,
            findings,
            read_setup,
            report,
        )
        from ccagent.machine.node import Node

        configuration = configure(common.options, assignments)
        settings = configuration.agents[LustreAgent.name]
        if not isinstance(settings, LustreSettings):
            raise ConfigurationError(f"{configuration.place}: agents.lustre: another agent's")
        if settings.input:
            raise ConfigurationError(
                f"{configuration.place}: agents.lustre.input: a dump has no setup to check: "
                "`check` reads this machine; omit the key, or add --set input="
            )
        found = findings(
            read_setup(Node(), settings.lctl, settings.target_time_limit.seconds),
            every=settings.every.seconds if settings.every is not None else None,
            formats=settings.formats,
        )
        click.echo(as_json(found).decode() if is_json else report(found))
        sys.exit(exit_status(found))

    return check
