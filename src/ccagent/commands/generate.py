"""Files for packages: man pages, completions in bash, zsh and fish, a configuration file.

ccagent(1) is made from the commands, ccagent.toml(5) from the keys of the settings, both with the
macros of man(7).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import ShellComplete, get_completion_class

from ccagent import __version__
from ccagent.agents.base import AgentSettings
from ccagent.config.configuration import GlobalSettings, OutboxSettings
from ccagent.config.defaults import (
    agent_sections,
    explain_key,
    sink_sections,
    table_sections,
    template,
    toml,
)
from ccagent.config.keys import Key, describe_keys
from ccagent.errors import ConfigurationError, NotPermittedError
from ccagent.registry import AGENTS, TRANSPORTS
from ccagent.service.private_directories import make_directory
from ccagent.service.private_files import replace_file
from ccagent.transports.base import NetworkSinkSettings, SinkSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_ESCAPES = {
    "\\": "\\(rs",
    "-": "\\-",
    "'": "\\(aq",
    '"': "\\(dq",
    "`": "\\(ga",
    "^": "\\(ha",
    "~": "\\(ti",
    "|": "|\\:",  # permits a line break in a long expression
}
"""Characters that roff would interpret as a command or replace."""


def escape(text: str) -> str:
    """Return text with roff's special characters escaped, at any position of a line."""
    found = _line(" ".join(text.split()))
    return f"\\&{found}" if found.startswith(".") else found


def _character(character: str) -> str:
    if character.isascii():
        return character if character.isprintable() else ""
    return f"\\[u{ord(character):04X}]"


def bold(text: str) -> str:
    """Return text in bold."""
    return f"\\fB{escape(text)}\\fR"


def italic(text: str) -> str:
    """Return text in italics, for placeholders."""
    return f"\\fI{escape(text)}\\fR"


def title(name: str, section: int, date: str, source: str, manual: str) -> str:
    """Return the start of a page. date: in ISO 8601."""
    # Lines with long expressions can't be adjusted to the right margin.
    return f'.TH "{escape(name)}" {section} "{date}" "{escape(source)}" "{escape(manual)}"\n.ad l\n'


def heading(text: str) -> str:
    """Return the heading of a section."""
    return f'.SH "{escape(text)}"\n'


def subheading(text: str) -> str:
    """Return the heading of a subsection."""
    return f'.SS "{escape(text)}"\n'


def paragraphs(*texts: str) -> str:
    """Return plain text after a heading."""
    return ".PP\n".join(f"{escape(text)}\n" for text in texts)


def entry(term: str, text: str) -> str:
    """Return a term in roff, with plain text indented below it."""
    return f".TP\n{term}\n{escape(text)}\n"


def example(text: str) -> str:
    """Return unchanged lines after a heading."""
    lines = [f"\\&{_line(line)}" for line in text.splitlines()]
    return ".nf\n.RS 4\n" + "".join(f"{line}\n" for line in lines) + ".RE\n.fi\n"


def _line(line: str) -> str:
    return "".join(_ESCAPES.get(each) or _character(each) for each in line)


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


def page(program: click.Group, date: str) -> Iterator[str]:
    """Yield the parts of ccagent(1)."""
    yield title("CCAGENT", 1, date, f"ccagent {__version__}", "User Commands")
    yield heading("NAME")
    yield "ccagent \\- collectors for the nodes of compute clusters\n"
    yield heading("SYNOPSIS")
    yield f"{bold('ccagent')} {italic('COMMAND')} [{italic('OPTIONS')}]\n"
    yield heading("DESCRIPTION")
    yield paragraphs(*_DESCRIPTION.split("\n\n"))
    context = click.Context(program, info_name="ccagent")
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


_CONFIGURATION = """\
The configuration of ccagent is TOML in UTF-8: one file and, if the directory conf.d exists beside
it, all files conf.d/*.toml, in the order of their names. Tables of the same name are merged. A key
in two files is an error. Packages complete the configuration in /etc/ccagent with
/usr/share/ccagent/conf.d/*.toml: their keys are used if no other file has them, and a file in
/etc/ccagent/conf.d replaces their file of the same name. All these files must belong to root, to
the owner of the main file or to ccagent's user, and no other user may write them.

Everything is checked before the start. The error for an unknown key suggests the nearest valid key.
`ccagent config check` prints all errors; `ccagent config defaults --template` prints a template.
SIGHUP makes the daemon read everything again.

A duration is a string of a number and its unit: ms, s, m, h or d. These files contain no secrets.
Keys that end in -file are paths of files with a secret, which other users must not be able to read,
or credential:NAME for a systemd credential.
"""
_EXAMPLE = """\
cluster = "fox.example.org"

[outbox]
directory = "/var/lib/ccagent"

[agents.sample]
every = "30s"

[agents.sysinfo]
every = "12h"

[sinks.backend]
url = "tls://nats.example.org"
jetstream = true
creds-file = "/etc/ccagent/fox.creds"
"""


_CONTROLS = (
    "Table [controls]: keys of ccagent-control.service. Each control that may be set has "
    'a table [controls.allow."CATEGORY.NAME"].'
)
_TABLES = {
    "controls": ("CONTROLS", _CONTROLS),
    "migfra": ("MIGRATION FRAMEWORK", "Table [migfra]: keys of ccagent-migfra.service."),
    "exporter": (
        "PROMETHEUS", "Table [exporter]: metrics that the daemon serves to Prometheus.",
    ),
}  # fmt: skip
"""Heading and text of the optional tables."""


def configuration_page(date: str) -> Iterator[str]:
    """Yield the parts of ccagent.toml(5), for built-in agents and sinks."""
    yield title("CCAGENT.TOML", 5, date, f"ccagent {__version__}", "File Formats")
    yield heading("NAME")
    yield "ccagent.toml \\- configuration of ccagent\n"
    yield heading("SYNOPSIS")
    yield f"{escape('/etc/ccagent/ccagent.toml')}\n.br\n{escape('/etc/ccagent/conf.d/*.toml')}\n"
    yield heading("DESCRIPTION")
    yield paragraphs(*_CONFIGURATION.split("\n\n"))
    yield heading("KEYS OUTSIDE OF ALL TABLES")
    yield from _keys(describe_keys(GlobalSettings))
    yield heading("THE OUTBOX")
    yield paragraphs("Table [outbox]: the queues of messages until their sinks acknowledge them.")
    yield from _keys(describe_keys(OutboxSettings))
    for name, (subject, text) in _TABLES.items():
        yield heading(subject)
        yield paragraphs(text)
        for section in table_sections(name):
            yield subheading(section.header)
            yield from _keys(section.keys)
    yield heading("AGENTS")
    yield paragraphs("Each agent that runs has a table [agents.NAME], which may be empty.")
    yield from _agents()
    yield heading("SINKS")
    yield paragraphs(
        "Each receiver has a table [sinks.NAME] with a name of the user's choice. The scheme of "
        "its URL determines its kind, and which of these keys it has."
    )
    yield from _sinks()
    yield heading("EXAMPLE")
    yield example(_EXAMPLE)
    yield heading("SEE ALSO")
    yield ".BR ccagent (1)\n"


def _agents() -> Iterator[str]:
    common = describe_keys(AgentSettings)
    yield subheading("Keys of all agents")
    yield from _keys(common)
    for section in agent_sections(AGENTS):
        yield subheading(section.header)
        yield paragraphs(section.description)
        yield from _keys(key for key in section.keys if key not in common)


def _sinks() -> Iterator[str]:
    common = describe_keys(SinkSettings)
    yield subheading("Keys of all sinks")
    yield from _keys(common)
    network = [key for key in describe_keys(NetworkSinkSettings) if key not in common]
    yield subheading("Keys of sinks on the network")
    yield from _keys(network)
    for schemes, section in sink_sections(TRANSPORTS):
        yield subheading("Sinks " + ", ".join(f"{scheme}:" for scheme in schemes))
        yield paragraphs(section.description)
        yield from _keys(key for key in section.keys if key not in common + network)


def _keys(keys: Iterable[Key]) -> Iterator[str]:
    for key in keys:
        if not key.within:
            default = "" if key.default is None else f" {escape(f'= {toml(key.default)}')}"
            yield entry(f"{bold(key.name)}{default}", explain_key(key))


def generate(program: click.Group, directory: str) -> list[str]:
    """Write all files below a directory, with `share` as below /usr. Return their paths.

    The files depend only on this version and the date of the man pages: SOURCE_DATE_EPOCH, or
    today. They do not contain installed third-party agents. Raise ConfigurationError on failure.
    """
    date = _date()
    files = {
        "ccagent.toml": template(AGENTS, TRANSPORTS),
        "share/man/man1/ccagent.1": "".join(page(program, date)),
        "share/man/man5/ccagent.toml.5": "".join(configuration_page(date)),
        **{f"share/{place}": script(program, shell) for shell, place in FILES.items()},
    }
    written: list[str] = []
    for place, text in files.items():
        path = Path(directory) / place
        try:
            make_directory(str(path.parent), 0o755)
            replace_file(str(path), text.encode(), 0o644)
        except NotPermittedError as error:
            raise ConfigurationError(str(error)) from error
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}") from error
        written.append(str(path))
    return written


def _date() -> str:
    """Return the date of the man pages. Source: reproducible-builds.org, SOURCE_DATE_EPOCH."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "") or str(int(time.time()))
    if not epoch.isdecimal() or len(epoch) > 11:
        raise ConfigurationError(f"SOURCE_DATE_EPOCH: {epoch!r} is not a number of seconds")
    return time.strftime("%Y-%m-%d", time.gmtime(int(epoch)))


FILES = {
    "bash": "bash-completion/completions/ccagent",
    "zsh": "zsh/site-functions/_ccagent",
    "fish": "fish/vendor_completions.d/ccagent.fish",
}
"""Path of each shell's script, below /usr/share."""


def script(program: click.Group, shell: str) -> str:
    """Return the script of a shell. It runs `ccagent` to find completions."""
    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"{shell!r} is not one of {', '.join(FILES)}")
    shell_completion = kind(program, {}, "ccagent", "_CCAGENT_COMPLETE")
    # source() of click's class for bash would run bash to find its version.
    text = ShellComplete.source(shell_completion)
    if shell != "zsh":
        return text
    # With click's last lines an autoloaded file completes only at the first call.
    definition, _, _ = text.partition("\nif [[ $zsh_eval_context")
    return f'{definition}\n{shell_completion.func_name} "$@"\n'
