"""The defaults of all settings, as the TOML of a configuration file."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ccagent.config.configuration import GlobalSettings, OutboxSettings
from ccagent.config.keys import Key, describe_keys
from ccagent.config.settings import Settings, join_key
from ccagent.registry import (
    TABLES,
    agent_names,
    load_agent,
    load_table,
    load_transport,
    transport_names,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_TEMPLATE = """\
# The configuration of ccagent. This file has every key with its default, commented out: it has no
# effect. Text starts with "# ", keys start with "#". To set a key, remove the "#" from its line and
# from the line of its table. An agent or sink is used only if the configuration has its table.
#
# Files conf.d/*.toml beside this file are also read, in the order of their names.
# `ccagent config check FILE` prints all errors. See ccagent.toml(5).
"""

_PURPOSES = {
    "controls": "the control service: reads and sets controls",
    "exporter": "metrics endpoint for Prometheus",
    "migfra": "the migration framework: starts and moves virtual machines for a FAST scheduler",
}

_SHOWN = {"a string", "true or false", "a list of strings", "a duration"}
"""Kinds that are obvious from a default."""


class Section(NamedTuple):
    """A table of the configuration: its header, its keys, and its purpose."""

    table: str
    keys: list[Key]
    description: str
    is_commented: bool = False

    @property
    def header(self) -> str:
        """The header line of the table."""
        return self.table if self.table.startswith("[[") else f"[{self.table}]"


def sections(agents: Iterable[str], transports: Iterable[str]) -> Iterator[Section]:
    """Yield all possible tables of a configuration, nested ones after their parents."""
    yield from _section("", GlobalSettings, "")
    yield from _section("outbox", OutboxSettings, "queues of messages until they are acknowledged")
    for name in TABLES:
        yield from table_sections(name)
    yield from agent_sections(agents)
    for schemes, found in sink_sections(transports):
        yield found._replace(table=f"sinks.some-{schemes[0]}-sink")


def table_sections(name: str) -> Iterator[Section]:
    """Yield the sections of an optional table, such as `controls`."""
    yield from _section(name, load_table(name)[0], _PURPOSES[name])


def agent_sections(agents: Iterable[str]) -> Iterator[Section]:
    """Yield the tables of agents, nested ones after their parents."""
    for name in agents:
        agent = load_agent(name)
        yield from _section(f"agents.{name}", agent.Settings, first_line(agent))


def sink_sections(transports: Iterable[str]) -> Iterator[tuple[list[str], Section]]:
    """Yield the tables of the kinds of sinks, each with its URL schemes."""
    found: dict[type[Any], list[str]] = {}
    for scheme in transports:
        found.setdefault(load_transport(f"{scheme}:"), []).append(scheme)
    for transport, schemes in found.items():
        for section in _section("sinks.NAME", transport.Settings, first_line(transport)):
            yield schemes, section


def _section(
    table: str, settings: type[Settings], description: str, *, is_commented: bool = False
) -> Iterator[Section]:
    keys = describe_keys(settings)
    own = [key for key in keys if key.within in {"", "list"}]
    yield Section(table, own, description, is_commented)
    for key in keys:
        name = join_key(table, key.name)
        inner = {"named": f"{name}.NAME", "list": f"[[{name}]]"}.get(key.within, name)
        if key.within:
            has_names = is_commented or key.within != "table"
            yield from _section(inner, key.settings, key.description, is_commented=has_names)


def defaults() -> str:
    """Return every key with its default, for all agents and kinds of sinks on this installation.

    Tables with user-defined names are comments.
    """
    return "\n".join(map(_write, sections(agent_names(), transport_names())))


def _write(section: Section) -> str:
    lines = [f"# {section.description}"] if section.is_commented else []
    lines += [section.header] if section.table else []
    for key in section.keys:
        lines += [f"# {key.description}", _setting(key)]
    if section.is_commented:
        lines = [line if line.startswith("# ") else f"# {line}" for line in lines]
    return "\n".join(lines) + "\n"


def template(agents: Iterable[str], transports: Iterable[str]) -> str:
    """Return a complete configuration file with everything commented out."""
    parts = [_TEMPLATE]
    for section in sections(agents, transports):
        lines = _prose(section.description) if section.description else []
        lines += [f"#{section.header}"] if section.table else []
        for key in section.keys:
            if key.within:
                continue
            default = '"..."' if key.default is None else toml(key.default)
            lines += ["", *_prose(explain_key(key)), f"#{key.name} = {default}"]
        parts.append("\n".join(lines).lstrip("\n") + "\n")
    return "\n".join(parts)


def explain_key(key: Key) -> str:
    """Return the description of a key, and its kind if that is not obvious from the default."""
    if key.default is None:
        return f"{key.description}; {key.kind}, no default"
    return key.description if key.kind in _SHOWN else f"{key.description}; {key.kind}"


def _prose(text: str) -> list[str]:
    return textwrap.wrap(text, 98, initial_indent="# ", subsequent_indent="# ")


def _setting(key: Key) -> str:
    if key.default is None:
        return f"# {key.name} = ..."
    return f"{key.name} = {toml(key.default)}"


def first_line(described_class: type) -> str:
    """Return the first line of the docstring of a class."""
    return (described_class.__doc__ or "").strip().partition("\n")[0]


def toml(value: object) -> str:
    """Return a value as TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case list() | tuple():
            return "[" + ", ".join(map(toml, cast("list[object]", value))) + "]"
        case dict():
            table = cast("dict[str, object]", value).items()
            return "{" + ", ".join(f"{toml(key)} = {toml(each)}" for key, each in table) + "}"
        case _:
            return f'"{"".join(map(_escape, str(value)))}"'


def _escape(character: str) -> str:
    if character in '\\"':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
