"""The defaults of all settings, written as the TOML that a configuration file holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from ccagent.config import GlobalSettings, OutboxSettings
from ccagent.registry import agent_class, agent_names, transport_class, transport_names
from ccagent.settings import as_table
from ccagent.transports.base import SinkSettings

if TYPE_CHECKING:
    from ccagent.settings import Settings


def document(settings: type[Settings], table: str = "") -> str:
    """Write the keys of a settings type as TOML: description, key and default of each."""
    lines = [f"[{table}]"] if table else []
    for field in msgspec.structs.fields(settings):
        kind = msgspec.inspect.type_info(field.type)
        if isinstance(kind, msgspec.inspect.Metadata):
            schema = as_table(cast("object", kind.extra_json_schema))  # pyright: ignore[reportUnknownMemberType] - msgspec leaves it open
            lines.append(f"# {schema['description']}")
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        key = field.encode_name
        if default is msgspec.NODEFAULT or default is None:
            lines.append(f"# {key} = ...")
        else:
            lines.append(f"{key} = {toml(default)}")
    return "\n".join(lines) + "\n"


def toml(value: object) -> str:
    """Write a value as TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case list() | tuple():
            return "[" + ", ".join(map(toml, cast("list[object]", value))) + "]"
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
