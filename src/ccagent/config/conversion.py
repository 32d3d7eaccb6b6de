"""Conversion of TOML tables to settings."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ccagent.config.settings import Settings, as_table, make_value
from ccagent.errors import ConfigurationError, KeyProblem
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", bound=Settings)
R = TypeVar("R")


def convert(table: object, settings: type[T], where: str, *, place: str) -> T:
    """Return an instance of `settings` from a table.

    place: the user's name of the source (a file's path). where: the table's key (`agents.sample`).
    Raise ConfigurationError with place, key and reason of each problem.
    """
    if table != {} and not as_table(table):
        raise ConfigurationError(KeyProblem(place, where, f"expected a table [{where}]"))
    if not table:
        # msgspec would evaluate the annotations of the type. That takes 1 ms.
        with suppress(TypeError):  # a key without a default
            return settings()
    try:
        return msgspec.convert(table, settings, dec_hook=make_value)
    except UnicodeEncodeError as error:
        raise ConfigurationError(KeyProblem(place, where, "not text in UTF-8")) from error
    except msgspec.ValidationError:
        return _convert_renamed(as_table(table), settings, where, place)


def _convert_renamed(table: dict[str, Any], settings: type[T], where: str, place: str) -> T:
    """Return `settings` from a table that does not fit, after replacing keys of old releases."""
    from ccagent.config.keys import find_problems, replace_renamed

    warnings: list[str] = []
    table = replace_renamed(table, settings, where, warnings)
    try:
        converted = msgspec.convert(table, settings, dec_hook=make_value)
    except msgspec.ValidationError as error:
        raise ConfigurationError(*find_problems(table, settings, where, place)) from error
    for warning in warnings:
        logger.warning("%s: %s", place, warning)
    return converted


def place_errors(place: str, table: str, check: Callable[..., R], *values: object) -> R:
    """Run a check of a table. Add the place to its errors; see `KeyProblem.of_table`."""
    try:
        return check(*values)
    except ConfigurationError as error:
        problems = [KeyProblem.of_table(place, table, text) for text in error.problems]
        raise ConfigurationError(*problems) from error
