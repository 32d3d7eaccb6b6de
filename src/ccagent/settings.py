"""Settings: structures that are filled from tables of TOML, strictly."""

from __future__ import annotations

import difflib
import re
from typing import Any, TypeVar, cast

import msgspec

from ccagent.duration import Duration
from ccagent.errors import ConfigurationError

T = TypeVar("T", bound="Settings")


class Settings(
    msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True
):
    """Base of all settings: the fields are the keys in kebab case, with their defaults."""


def convert(table: object, settings: type[T], where: str, *, place: str) -> T:
    """Fill `settings` from a table.

    `place` is what the user calls the source (a file's path), `where` the table's own key
    (`agents.sample`). Raises ConfigurationError naming place, key, reason and the nearest key.
    """
    if table != {} and not as_table(table):
        raise ConfigurationError(f"{place}: {where}: expected a table [{where}]")
    _check_keys(as_table(table), settings, where, place)
    try:
        return msgspec.convert(table, settings, dec_hook=_make)
    except msgspec.ValidationError as error:
        _convert_named(as_table(table), settings, where, place)
        reason, _, path = str(error).rpartition(" - at `$")
        key = (path.rstrip("`").lstrip(".") if reason else "").replace("[...]", "")
        raise ConfigurationError(
            f"{place}: {joined(where, key)}: {_plain(reason or str(error))}"
        ) from None


def _convert_named(table: dict[str, Any], settings: type[Settings], where: str, place: str) -> None:
    """Fill tables that have names one by one: msgspec doesn't tell which of them is wrong."""
    for key, kind in tables_of(settings).items():
        if isinstance(kind, tuple):
            for name, inner in as_table(table.get(key)).items():
                convert(inner, kind[0], joined(where, key, name), place=place)


def _check_keys(table: dict[str, Any], settings: type[Settings], where: str, place: str) -> None:
    """Raise ConfigurationError for a key that isn't known, here or in a table within."""
    known = settings.__struct_encode_fields__
    for key, value in table.items():
        if key not in known:
            unknown_key(place, joined(where, key), key, known)
        within = as_table(value)
        if not within:
            continue
        kind = tables_of(settings)[key]
        if isinstance(kind, tuple):
            for name, inner in within.items():
                _check_keys(as_table(inner), kind[0], joined(where, key, name), place)
        elif kind is not None:
            _check_keys(within, kind, joined(where, key), place)


def tables_of(settings: type[Settings]) -> dict[str, type[Settings] | tuple[type[Settings]] | None]:
    """Tell by key what tables are within: one, several with names (as a tuple), or None."""
    found: dict[str, type[Settings] | tuple[type[Settings]] | None] = {}
    for field in msgspec.structs.fields(settings):
        kind = msgspec.inspect.type_info(field.type)
        if isinstance(kind, msgspec.inspect.Metadata):
            kind = kind.type
        found[field.encode_name] = None
        match kind:
            case msgspec.inspect.StructType(cls=inner) if issubclass(inner, Settings):
                found[field.encode_name] = inner
            case msgspec.inspect.DictType(value_type=msgspec.inspect.StructType(cls=inner)) if (
                issubclass(inner, Settings)
            ):
                found[field.encode_name] = (inner,)
            case _:
                pass
    return found


def as_table(value: object) -> dict[str, Any]:
    """Give a value of TOML if it is a table, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def refuse_nul(value: object, where: str, place: str) -> None:
    """Raise ConfigurationError for the character NUL, which no path, program or name can hold."""
    match value:
        case str() if "\0" in value:
            raise ConfigurationError(f"{place}: {where}: can't hold the character NUL")
        case list():
            for each in cast("list[object]", value):
                refuse_nul(each, where, place)
        case dict():
            for key, inner in as_table(cast("object", value)).items():
                full = joined(where, key)
                refuse_nul(key, full, place)
                refuse_nul(inner, full, place)
        case _:
            pass


def unknown_key(place: str, full: str, key: str, known: tuple[str, ...]) -> None:
    """Raise ConfigurationError for a key that isn't known, naming the nearest that is."""
    raise ConfigurationError(f"{place}: {full}: unknown key{nearest(key, known)}")


def nearest(name: str, known: tuple[str, ...] | list[str]) -> str:
    """`; did you mean 'x'?`, or the list of what there is when nothing is near."""
    candidates = difflib.get_close_matches(name.replace("_", "-"), known, n=1, cutoff=0.5)
    if candidates:
        return f"; did you mean {candidates[0]!r}?"
    return f"; there are {', '.join(sorted(known))}" if known else ""


def joined(*parts: str) -> str:
    """Join the parts of a key with dots."""
    return ".".join(part for part in parts if part)


def _make(kind: type[Any], value: object) -> object:
    if issubclass(kind, Duration):
        return kind.parse(value)
    raise NotImplementedError(kind)


_TYPES = {
    "bool": "true or false",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "array": "a list",
    "object": "a table",
}


def _plain(reason: str) -> str:
    """Say in the words of TOML what msgspec says in those of Python."""
    return re.sub(r"`(\w+)`", lambda match: _TYPES.get(match[1], f"`{match[1]}`"), reason).replace(
        "Expected", "expected", 1
    )
