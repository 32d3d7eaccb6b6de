"""The keys of a settings type: descriptions, earlier names, and the problems of their values.

Descriptions are in the annotations of the keys (`msgspec.Meta`). They are the source of `ccagent
config defaults`, the template of a configuration file and ccagent.toml(5).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from msgspec import inspect

from ccagent.config.duration import Cadence, Duration
from ccagent.config.settings import (
    Settings,
    as_list,
    as_table,
    is_list,
    is_table,
    join_key,
    make_value,
)
from ccagent.errors import KeyProblem, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Literal

    Within = Literal["", "table", "named", "list"]


_TYPES = {
    "bool": "true or false",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "array": "a list",
    "object": "a table",
}
"""The types of TOML, by msgspec's names."""


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


def replace_renamed(
    table: dict[str, Any], settings: type[Settings], where: str, warnings: list[str]
) -> dict[str, Any]:
    """Return the table with the current names of its keys. Add a warning for each earlier name.

    A key with both names in the table keeps both. The earlier name is then reported as unknown.
    """
    nested = {key.name: key.settings for key in describe_keys(settings) if key.within == "table"}
    found: dict[str, Any] = {}
    for name, value in table.items():
        present = settings.renamed.get(name, name)
        if present != name:
            if present in table:
                present = name
            else:
                warnings.append(f"{join_key(where, name)}: this key is now called {present}")
        found[present] = value
        if present in nested and is_table(value):
            full = join_key(where, present)
            found[present] = replace_renamed(as_table(value), nested[present], full, warnings)
    return found


def find_problems(
    table: dict[str, Any], settings: type[Settings], where: str, place: str
) -> Iterator[KeyProblem]:
    """Yield the problem of each value that msgspec refuses, in the order of the keys."""
    is_refused = False
    for problem in _find_in_keys(table, settings, where, place):
        is_refused = True
        yield problem
    if not is_refused:
        # Each key is valid, but not their combination.
        for key, reason in _refusal(table, settings, where):
            yield KeyProblem.of_table(place, key, reason)


def _find_in_keys(
    table: dict[str, Any], settings: type[Settings], where: str, place: str
) -> Iterator[KeyProblem]:
    keys = {key.name: key for key in describe_keys(settings)}
    fields = {field.encode_name: field for field in msgspec.structs.fields(settings)}
    for name, value in table.items():
        full = join_key(where, name)
        key = keys.get(name)
        if key is None:
            yield KeyProblem(place, full, f"unknown key{nearest(name, [*keys])}")
        elif key.within:
            yield from _find_within(key, value, full, place)
        else:
            for inner, reason in _refusal(value, fields[name].type, full, key.kind):
                yield KeyProblem(place, inner, reason)
    for name, field in fields.items():
        if field.required and name not in table:
            yield KeyProblem(place, join_key(where, name), "missing, and has no default")


def _find_within(key: Key, value: object, full: str, place: str) -> Iterator[KeyProblem]:
    """Yield the problems of a nested table, named tables, or a list of tables."""
    tables: dict[str, object] = {full: value}
    if key.within == "list":
        if not is_list(value):
            yield KeyProblem(place, full, f"expected tables [[{full}]]")
            return
        tables = {f"{full}[{number}]": each for number, each in enumerate(as_list(value))}
    elif not is_table(value):
        yield KeyProblem(place, full, f"expected a table [{full}]")
        return
    elif key.within == "named":
        tables = {join_key(full, name): each for name, each in as_table(value).items()}
    for name, each in tables.items():
        if not is_table(each):
            yield KeyProblem(place, name, "expected a table")
        elif any(True for _ in _refusal(each, key.settings, name)):
            yield from find_problems(as_table(each), key.settings, name, place)


def _refusal(value: object, kind: Any, full: str, choices: str = "") -> Iterator[tuple[str, str]]:
    """Yield key and reason of msgspec's error for one value, if it refuses the value."""
    try:
        msgspec.convert(value, kind, dec_hook=make_value)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).rpartition(" - at `$")
        inner = path.rstrip("`").replace("[...]", "") if reason else ""
        yield f"{full}{inner}", _in_plain_words(reason or str(error), choices)


def _in_plain_words(reason: str, choices: str) -> str:
    """Return a message of msgspec in TOML's terms."""
    invalid = reason.removeprefix("Invalid enum value ")
    if invalid != reason and '"' in choices:
        names = re.findall(r'"([^"]*)"', choices)
        guess = nearest(invalid.strip("'"), names)
        guess = guess if "did you mean" in guess else ""
        listed = ", ".join(f"{name!r}" for name in names)
        return f"{invalid} is none of {listed}{guess}"
    text = re.sub(r"`(\w+)`", lambda match: _TYPES.get(match[1], f"`{match[1]}`"), reason)
    return text.replace("Expected", "expected", 1)
