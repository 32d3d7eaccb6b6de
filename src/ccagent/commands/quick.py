"""Parser of the command line `AGENT --once` with simple options. It saves 25 ms for click.

click parses all other command lines, and prints errors and help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.config.registry import AGENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.commands.options import Options

_VALUED = {"--config", "--cluster", "--format", "--sink"}
_FORMATS = {None, "sonar", "line", "table"}
_CHOOSING = {"energy"}
"""Agents whose command prints a table of its kind, and chooses the format if none is given."""


def parse_quick(arguments: Sequence[str]) -> tuple[str, Options] | None:
    """Return the agent and the options of a command line; None if click must parse it."""
    if not arguments or arguments[0] not in AGENTS:
        return None
    is_without_file = False
    found: dict[str, str] = {}
    sinks: list[str] = []
    rest = iter(arguments[1:])
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument == "--no-config":
            is_without_file = True
        elif name in _VALUED:
            if not equals:
                value = next(rest, "-")
            if value.startswith("-"):
                return None
            if name == "--sink":
                sinks.append(value)
            else:
                found[name] = value
        elif argument != "--once":
            return None
    form = found.get("--format")
    if form not in _FORMATS or (arguments[0] in _CHOOSING and form in {None, "table"}):
        return None
    from ccagent.commands.options import Options

    options = Options(
        path=found.get("--config"),
        is_without_file=is_without_file,
        cluster=found.get("--cluster"),
        sinks=tuple(sinks),
        form=form,
    )
    return arguments[0], options
