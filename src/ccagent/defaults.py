"""The defaults of all settings, written as the TOML that a configuration file holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from ccagent.config import GlobalSettings, OutboxSettings
from ccagent.registry import agent_class, agent_names, transport_class, transport_names
from ccagent.settings import as_table, joined, tables_of
from ccagent.transports.base import SinkSettings

if TYPE_CHECKING:
    from ccagent.settings import Settings


def document(settings: type[Settings], table: str = "") -> str:
    """Write the keys of a settings type as TOML: description, key and default of each.

    Tables within it follow; those that the user names stand there as comments.
    """
    lines = [f"[{table}]"] if table else []
    tables: list[str] = []
    within = tables_of(settings)
    for field in msgspec.structs.fields(settings):
        kind = msgspec.inspect.type_info(field.type)
        description = ""
        if isinstance(kind, msgspec.inspect.Metadata):
            schema = as_table(cast("object", kind.extra_json_schema))  # pyright: ignore[reportUnknownMemberType] - msgspec leaves it open
            description = f"# {schema['description']}"
        key = field.encode_name
        inner = within[key]
        if isinstance(inner, tuple):
            named = document(inner[0], joined(table, key, "NAME"))
            tables.append(_comment(f"{description}\n{named}"))
            continue
        if inner is not None:
            tables.append(document(inner, joined(table, key)))
            continue
        if description:
            lines.append(description)
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if default is msgspec.NODEFAULT or default is None:
            lines.append(f"# {key} = ...")
        else:
            lines.append(f"{key} = {toml(default)}")
    return "\n".join(["\n".join(lines) + "\n", *tables])


def _comment(text: str) -> str:
    lines = [line if not line or line.startswith("#") else f"# {line}" for line in text.split("\n")]
    return "\n".join(lines)


def toml(value: object) -> str:
    """Write a value as TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case list() | tuple():
            return "[" + ", ".join(map(toml, cast("list[object]", value))) + "]"
        case dict():
            table = cast("dict[str, object]", value)
            return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in table.items()) + "}"
        case _:
            escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'


def defaults() -> str:
    """Every key with its default, for all agents and kinds of sinks on this installation."""
    parts = [document(GlobalSettings), document(OutboxSettings, "outbox")]
    parts += [document(agent_class(name).Settings, f"agents.{name}") for name in agent_names()]
    seen: set[type[SinkSettings]] = set()
    for scheme in transport_names():
        settings = transport_class(f"{scheme}:").Settings
        if settings not in seen or settings is SinkSettings:
            seen.add(settings)
            parts.append(document(settings, f"sinks.some-{scheme}-sink"))
    return "\n".join(parts)
