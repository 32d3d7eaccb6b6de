"""Shared options of commands, for click. Users may put them before or after a sub-command."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.commands.options import Options

_verbose = click.option(
    "-v", "--verbose", count=True, help="Log more on stderr: information; twice: everything."
)
_config = click.option(
    "--config",
    "path",
    type=click.Path(),
    metavar="FILE",
    help="Configuration file, instead of /etc/ccagent/ccagent.toml.",
)
_no_config = click.option(
    "--no-config", "is_without_file", is_flag=True, help="Read no configuration file."
)
_NOT_GIVEN = (None, (), False)
_others = (
    click.option(
        "--sink",
        "sinks",
        multiple=True,
        metavar="URL",
        help="Send records to this URL, instead of the configured sinks; repeatable.",
    ),
    click.option(
        "--sink-set",
        "sink_values",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a key of the sinks given by --sink; repeatable.",
    ),
    click.option(
        "--format",
        "form",
        type=click.Choice(["sonar", "line", "table"]),
        help="Output format: Sonar JSON envelopes, line protocol, or a table.",
    ),
    click.option("--cluster", metavar="NAME", help="Name of the cluster in every record."),
)


class HelpfulGroup(click.Group):
    """A group of commands. Its error for an unknown command suggests the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the arguments. Raise UsageError for an unknown one."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from ccagent.config.settings import nearest

            known = nearest(args[0], self.list_commands(ctx))
            ctx.fail(f"there is no command {args[0]!r}{known}")
        return super().resolve_command(ctx, args)


def make_group(command: click.Command) -> HelpfulGroup:
    """Return an agent's command as a group. Without a sub-command the group samples."""
    take_sample = command.callback
    if take_sample is None:
        raise RuntimeError("the command does nothing")

    @click.pass_context
    def run(ctx: click.Context, /, **options: Any) -> None:
        if ctx.invoked_subcommand is None:
            take_sample(**options)

    return HelpfulGroup(
        command.name,
        callback=run,
        params=command.params,
        help=command.help,
        invoke_without_command=True,
    )


class Common(NamedTuple):
    """The shared options of a command line."""

    options: Options
    verbosity: int


def add_file_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--config`, `--no-config` and `-v` to a command, as its argument `common`."""
    return _add((_verbose, _no_config, _config), function)


def add_common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add all shared options to a command, as its argument `common`."""
    return _add((_verbose, *_others, _no_config, _config), function)


def take_common(values: dict[str, Any]) -> Common:
    """Remove the shared options from click's values, and return them.

    An option that is not given after the sub-command may be given before it.
    """
    from ccagent.commands.options import Options

    contexts: list[click.Context] = []
    context = click.get_current_context(silent=True)
    while context is not None:
        contexts.append(context)
        context = context.parent
    defaults = Options()
    found: dict[str, Any] = {}
    for name in Options._fields:
        each_given = [values.pop(name, None), *(each.params.get(name) for each in contexts)]
        given = [value for value in each_given if value not in _NOT_GIVEN]
        found[name] = given[0] if given else getattr(defaults, name)
    values.pop("verbose", None)
    verbosity = sum(each.params.get("verbose") or 0 for each in contexts)
    return Common(Options(**found), verbosity)


def _add(
    decorators: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...],
    function: Callable[..., Any],
) -> Callable[..., Any]:
    @functools.wraps(function)
    def with_common(*arguments: Any, **values: Any) -> Any:
        common = take_common(values)
        return function(*arguments, common=common, **values)

    decorated: Callable[..., Any] = with_common
    for decorate in decorators:
        decorated = decorate(decorated)
    return decorated
