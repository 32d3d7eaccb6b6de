"""ccagent(1), made from the commands themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ccagent import __version__
from ccagent.cli.generate.roff import (
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
ccagent samples what one machine of a compute cluster knows (processes, jobs, hardware, metrics,
Slurm, Lustre) and sends it to whoever keeps it: over NATS, MQTT, HTTP or Kafka, to files or to
standard output.

Its commands take one sample each, or run the daemon, which samples at times aligned to the clock
and keeps in an outbox what could not be sent yet.
"""
_STATUS = {
    "0": "All is well.",
    "1": "A sample is lost, nothing could be read, or what was asked for is not so.",
    "2": "The command or the configuration is wrong. A line on stderr for each mistake says what.",
}
_SIGNALS = {
    "SIGTERM, SIGINT": "The daemon finishes what is in hand within five seconds, and ends.",
    "SIGHUP": "It reads its configuration again. A bad one changes nothing.",
    "SIGUSR1": "It writes its counters to the log.",
}
_FILES = {
    "/etc/ccagent/ccagent.toml": "The configuration, unless --config names another.",
    "/etc/ccagent/conf.d/*.toml": "More of it, in the order of their names.",
    "/run/ccagent/status.sock": "Where `ccagent status` asks the daemon.",
}

_SEVERAL = 3
"""Options of so many commands are described once."""


def page(program: click.Group, date: str) -> str:
    """Write ccagent(1)."""
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
    """Return the options that several commands have, by name and help."""
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
    """Describe the commands of a group, and those below them."""
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
