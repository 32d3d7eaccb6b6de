"""Base class of settings: structures for strict conversion from TOML tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import msgspec

from ccagent.config.duration import Duration
from ccagent.errors import ConfigurationError, KeyProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

R = TypeVar("R")


class Settings(
    msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True
):
    """Base class of all settings. The fields are the keys in kebab case, with their defaults.

    renamed: keys of earlier releases, each with its replacement. A configuration may contain either
    key; an earlier key is logged.
    """

    renamed: ClassVar[dict[str, str]] = {}


def as_table(value: object) -> dict[str, Any]:
    """Return a value of TOML if it is a table, else an empty table."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """Return a value of TOML if it is a list, else an empty list."""
    return cast("list[object]", value) if isinstance(value, list) else []


def is_list(value: object) -> bool:
    """Return whether a value of TOML is a list."""
    return isinstance(value, list)


def is_table(value: object) -> bool:
    """Return whether a value of TOML is a table."""
    return isinstance(value, dict)


def find_unusable_texts(value: object, where: str) -> Iterator[tuple[str, str]]:
    """Yield key and reason of texts and keys that are invalid for every key.

    A text must not contain the character NUL. Variables in texts are not replaced, so a variable is
    a mistake, except in a command.
    """
    match value:
        case str():
            if "\0" in value:
                yield where, "can't hold the character NUL"
            elif (value.startswith("env:") or "${" in value) and "command" not in where:
                from ccagent.config.toml_lines import NO_VARIABLES

                yield where, NO_VARIABLES
        case list():
            for each in cast("list[object]", value):
                yield from find_unusable_texts(each, where)
        case dict():
            for key, inner in as_table(cast("object", value)).items():
                full = join_key(where, key)
                if "\0" in key:
                    yield full, "can't hold the character NUL"
                yield from find_unusable_texts(inner, full)
        case _:
            pass


def join_key(*parts: str) -> str:
    """Join the parts of a key with dots."""
    return ".".join(part for part in parts if part)


def make_value(kind: type[Any], value: object) -> object:
    """Return a value of a type unknown to msgspec. Raise ValueError with the reason."""
    if issubclass(kind, Duration):
        return kind.parse(value)
    raise NotImplementedError(kind)


class Problems:
    """Collects problems, to report all of them together."""

    def __init__(self, place: str) -> None:
        self.found: list[str] = []
        self._place = place

    def add(self, key: str, reason: str) -> None:
        """Add the problem of a key."""
        self.found.append(KeyProblem(self._place, key, reason))

    def attempt(self, check: Callable[..., R], *values: object, **more: Any) -> R | None:
        """Run a check and return its result. If it finds problems, keep them and return None."""
        try:
            return check(*values, **more)
        except ConfigurationError as error:
            self.found += error.problems
            return None

    def raise_found(self) -> None:
        """Raise ConfigurationError if any problem was found."""
        if self.found:
            raise ConfigurationError(*self.found)
