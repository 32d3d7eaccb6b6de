"""Problems of a table that does not fit its settings, for each key in plain words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from ccagent.config.described import describe_keys
from ccagent.config.settings import (
    as_list,
    as_table,
    is_list,
    is_table,
    join_key,
    make_value,
    nearest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.config.described import Key
    from ccagent.config.settings import Settings

_TYPES = {
    "bool": "true or false",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "array": "a list",
    "object": "a table",
}


def find_problems(table: dict[str, Any], settings: type[Settings], where: str) -> list[str]:
    """Return key and reason of each value that msgspec refuses, in the order of the keys."""
    found = list(_find_in_keys(table, settings, where))
    if not found:
        # Each key is valid, but not their combination.
        found.extend(_refusal(table, settings, where))
    return found


def _find_in_keys(table: dict[str, Any], settings: type[Settings], where: str) -> Iterator[str]:
    keys = {key.name: key for key in describe_keys(settings)}
    types = {field.encode_name: field.type for field in msgspec.structs.fields(settings)}
    for name, value in table.items():
        full = join_key(where, name)
        key = keys.get(name)
        if key is None:
            yield f"{full}: unknown key{nearest(name, [*keys])}"
        elif key.within:
            yield from _find_within(key, value, full)
        else:
            yield from _refusal(value, types[name], full, key.kind)
    for field in msgspec.structs.fields(settings):
        if field.required and field.encode_name not in table:
            yield f"{join_key(where, field.encode_name)}: missing, and has no default"


def _find_within(key: Key, value: object, full: str) -> Iterator[str]:
    """Yield the problems of a nested table, named tables, or a list of tables."""
    tables: dict[str, object]
    if key.within == "list":
        if not is_list(value):
            yield f"{full}: expected tables [[{full}]]"
            return
        tables = {f"{full}[{number}]": each for number, each in enumerate(as_list(value))}
    elif not is_table(value):
        yield f"{full}: expected a table [{full}]"
        return
    elif key.within == "named":
        tables = {join_key(full, name): each for name, each in as_table(value).items()}
    else:
        tables = {full: value}
    for name, each in tables.items():
        if not is_table(each):
            yield f"{name}: expected a table"
        elif any(True for _ in _refusal(each, key.settings, name)):
            yield from find_problems(as_table(each), key.settings, name)


def _refusal(value: object, kind: Any, full: str, choices: str = "") -> Iterator[str]:
    """Yield msgspec's error for one value, if it refuses the value."""
    try:
        msgspec.convert(value, kind, dec_hook=make_value)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).rpartition(" - at `$")
        inner = path.rstrip("`").replace("[...]", "") if reason else ""
        yield f"{full}{inner}: {_in_plain_words(reason or str(error), choices)}"


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
