"""Generator of ccagent.toml(5) from the keys of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent import __version__
from ccagent.agents.base import AgentSettings
from ccagent.commands.generate.roff import (
    bold,
    entry,
    escape,
    example,
    heading,
    paragraphs,
    subheading,
    title,
)
from ccagent.config.configuration import GlobalSettings, OutboxSettings
from ccagent.config.defaults import (
    agent_sections,
    control_sections,
    explain_key,
    exporter_sections,
    sink_sections,
    toml,
)
from ccagent.config.described import describe_keys
from ccagent.config.registry import AGENTS, TRANSPORTS
from ccagent.transports.base import SinkSettings
from ccagent.transports.network import NetworkSinkSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.config.described import Key

_DESCRIPTION = """\
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


def page(date: str) -> str:
    """Return ccagent.toml(5), for built-in agents and sinks."""
    return "".join(_parts(date))


def _parts(date: str) -> Iterator[str]:
    name = "ccagent.toml"
    yield title(name.upper(), 5, date, f"ccagent {__version__}", "File Formats")
    yield heading("NAME")
    yield f"{name} \\- configuration of ccagent\n"
    yield heading("SYNOPSIS")
    yield f"{escape('/etc/ccagent/ccagent.toml')}\n.br\n{escape('/etc/ccagent/conf.d/*.toml')}\n"
    yield heading("DESCRIPTION")
    yield paragraphs(*_DESCRIPTION.split("\n\n"))
    yield heading("KEYS OUTSIDE OF ALL TABLES")
    yield from _keys(describe_keys(GlobalSettings))
    yield heading("THE OUTBOX")
    yield paragraphs("Table [outbox]: the queues of messages until their sinks acknowledge them.")
    yield from _keys(describe_keys(OutboxSettings))
    yield heading("CONTROLS")
    yield paragraphs(
        "Table [controls]: keys of ccagent-control.service. Each control that may be set has "
        'a table [controls.allow."CATEGORY.NAME"].'
    )
    yield from _controls()
    yield heading("PROMETHEUS")
    yield paragraphs("Table [exporter]: metrics that the daemon serves to Prometheus.")
    for section in exporter_sections():
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


def _controls() -> Iterator[str]:
    for section in control_sections():
        yield subheading(section.header)
        yield from _keys(section.keys)


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
