"""The keys of a settings type: description, kind, default, nested settings.

Descriptions are in the annotations of the keys (`msgspec.Meta`). They are the source of `ccagent
config defaults`, the template of a configuration file and ccagent.toml(5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec
from msgspec import inspect

from ccagent.config.duration import Cadence, Duration
from ccagent.config.settings import Settings, as_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    Within = Literal["", "table", "named", "list"]


class Key(NamedTuple):
    """One key.

    within: kind of nested settings: a table, tables by user-defined names, or a list of tables;
    empty without. default: None if the key has none.
    """

    name: str
    description: str
    kind: str
    default: object
    within: Within = ""
    settings: type[Settings] = Settings


def describe_keys(settings: type[Settings]) -> list[Key]:
    """Return the keys of a settings type in their order."""
    found: list[Key] = []
    for field in msgspec.structs.fields(settings):
        kind = inspect.type_info(field.type)
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        within, inner = _within(_plain(kind))
        found.append(
            Key(
                field.encode_name,
                _description(kind),
                "" if within else _kind(kind),
                None if default is msgspec.NODEFAULT else default,
                within,
                inner,
            )
        )
    return found


def _plain(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def _description(kind: inspect.Type) -> str:
    if not isinstance(kind, inspect.Metadata):
        return ""
    schema = as_table(cast("object", kind.extra_json_schema))  # pyright: ignore[reportUnknownMemberType] - msgspec leaves it open
    return str(schema.get("description", ""))


def _within(kind: inspect.Type) -> tuple[Within, type[Settings]]:
    """Return the nested settings type of a key, and the kind of nesting."""
    match kind:
        case inspect.StructType(cls=inner) if issubclass(inner, Settings):
            return "table", inner
        case inspect.DictType(value_type=inspect.StructType(cls=inner)) if issubclass(
            inner, Settings
        ):
            return "named", inner
        case (
            inspect.ListType(item_type=inspect.StructType(cls=inner))
            | inspect.VarTupleType(item_type=inspect.StructType(cls=inner))
        ) if issubclass(inner, Settings):
            return "list", inner
        case _:
            return "", Settings


def _kind(kind: inspect.Type) -> str:
    """Return the kind of a key's values in TOML's terms."""
    match kind:
        case inspect.Metadata(type=inner):
            return _kind(inner)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=ge) | inspect.FloatType(ge=ge):
            number = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            return number if ge is None else f"{number}, at least {ge}"
        case inspect.LiteralType(values=values):
            return f"one of {_choices(values)}"
        case inspect.CustomType(cls=found) if issubclass(found, Cadence):
            return 'a cadence such as "30s", "5m" or "1d"'
        case inspect.CustomType(cls=found) if issubclass(found, Duration):
            return "a duration"
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return f"a list of {_items(_plain(item))}"
        case inspect.DictType():
            return "a table of strings"
        case inspect.UnionType(types=types):
            return " or ".join(_kind(each) for each in types if each != inspect.NoneType())
        case _:
            return "a string"


def _items(kind: inspect.Type) -> str:
    match kind:
        case inspect.LiteralType(values=values):
            return _choices(values)
        case inspect.IntType():
            return "whole numbers"
        case _:
            return "strings"


def _choices(values: Sequence[object]) -> str:
    return ", ".join(f'"{each}"' if isinstance(each, str) else str(each) for each in values)
