"""Generator of ccagent(1) from the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ccagent import __version__
from ccagent.commands.generate.roff import (
    bold,
    entry,
    escape,
    heading,
    italic,
    paragraphs,
    subheading,
    title,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_DESCRIPTION = """\
ccagent samples one machine of a compute cluster (processes, jobs, hardware, metrics, Slurm,
Lustre) and sends the data to receivers: over NATS, MQTT, HTTP or Kafka, to files or to standard
output.

The command of an agent takes one sample. The daemon samples at times aligned to the clock, and
keeps messages in an outbox until they are sent.
"""
_STATUS = {
    "0": "Success.",
    "1": "A sample is lost, no data could be read, or a check failed.",
    "2": "The command or the configuration is wrong. stderr has a line for each mistake.",
}
_SIGNALS = {
    "SIGTERM, SIGINT": "The daemon finishes its current work within five seconds, and ends.",
    "SIGHUP": "The daemon reads its configuration again. An invalid one changes nothing.",
    "SIGUSR1": "The daemon writes its counters to the log.",
}
_FILES = {
    "/etc/ccagent/ccagent.toml": "The configuration, unless --config names another.",
    "/etc/ccagent/conf.d/*.toml": "Additional configuration files, in the order of their names.",
    "/run/ccagent/status.sock": "Socket of the daemon for `ccagent status`.",
}

_SEVERAL = 3
"""Options of this many commands are described once."""


def page(program: click.Group, date: str) -> str:
    """Return ccagent(1)."""
    return "".join(_parts(program, date))


def _parts(program: click.Group, date: str) -> Iterator[str]:
    name = "ccagent"
    source = f"{name} {__version__}"
    yield title(name.upper(), 1, date, source, "User Commands")
    yield heading("NAME")
    yield f"{name} \\- collectors for the nodes of compute clusters\n"
    yield heading("SYNOPSIS")
    yield f"{bold(name)} {italic('COMMAND')} [{italic('OPTIONS')}]\n"
    yield heading("DESCRIPTION")
    yield paragraphs(*_DESCRIPTION.split("\n\n"))
    context = click.Context(program, info_name=name)
    everywhere = _find_shared(program, context)
    yield heading("OPTIONS")
    yield from _options(program.get_params(context), context, {})
    yield subheading("Of several commands")
    yield from map(_option, everywhere.values())
    yield heading("COMMANDS")
    yield from _commands(program, context, everywhere)
    yield heading("EXIT STATUS")
    yield from (entry(bold(term), text) for term, text in _STATUS.items())
    yield heading("SIGNALS")
    yield from (entry(bold(term), text) for term, text in _SIGNALS.items())
    yield heading("FILES")
    yield from (entry(bold(term), text) for term, text in _FILES.items())
    yield heading("SEE ALSO")
    yield f".BR {escape('ccagent.toml')} (5)\n"


def _find_shared(program: click.Group, context: click.Context) -> dict[str, tuple[str, str]]:
    """Return the options of several commands, by name and help."""
    found: list[tuple[str, str]] = []
    for name in program.list_commands(context):
        command = program.get_command(context, name)
        if command is not None:
            inner = click.Context(command, info_name=name, parent=context)
            records = [each.get_help_record(inner) for each in command.get_params(inner)]
            found += [record for record in records if record is not None]
    return {
        record[0]: record
        for record in found
        if found.count(record) >= _SEVERAL and not record[0].endswith("--help")
    }


def _commands(
    group: click.Group, context: click.Context, everywhere: dict[str, tuple[str, str]]
) -> Iterator[str]:
    """Yield the descriptions of a group's commands and their sub-commands."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        usage = " ".join(command.collect_usage_pieces(inner))
        yield subheading(f"{inner.command_path} {usage}")
        yield paragraphs(*(command.help or "").split("\n\n"))
        yield from _options(command.get_params(inner), inner, everywhere)
        if isinstance(command, click.Group):
            yield from _commands(command, inner, everywhere)


def _options(
    params: list[click.Parameter], context: click.Context, everywhere: dict[str, tuple[str, str]]
) -> Iterator[str]:
    for param in params:
        record = param.get_help_record(context)
        if record is None or not record[1] or everywhere.get(record[0]) == record:
            continue
        if context.parent is None or not record[0].endswith("--help"):
            yield _option(record)


def _option(record: tuple[str, str]) -> str:
    return entry(bold(record[0]), record[1])
