"""Conversion of TOML tables to settings."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from ccagent.config.settings import Settings, as_table, make_value
from ccagent.errors import ConfigurationError
from ccagent.log import logger

T = TypeVar("T", bound=Settings)


def convert(table: object, settings: type[T], where: str, *, place: str) -> T:
    """Return an instance of `settings` from a table.

    place: the user's name of the source (a file's path). where: the table's key (`agents.sample`).
    Raise ConfigurationError with place, key and reason of each problem.
    """
    if table != {} and not as_table(table):
        raise ConfigurationError(f"{place}: {where}: expected a table [{where}]")
    if not table:
        # msgspec would evaluate the annotations of the type. That takes 1 ms.
        with suppress(TypeError):  # a key without a default
            return settings()
    try:
        return msgspec.convert(table, settings, dec_hook=make_value)
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{place}: {where}: not text in UTF-8") from error
    except msgspec.ValidationError:
        return _convert_renamed(as_table(table), settings, where, place)


def _convert_renamed(table: dict[str, Any], settings: type[T], where: str, place: str) -> T:
    """Return `settings` from a table that does not fit, after replacing keys of old releases."""
    from ccagent.config.renamed_keys import replace_renamed
    from ccagent.config.settings_problems import find_problems

    warnings: list[str] = []
    table = replace_renamed(table, settings, where, warnings)
    try:
        converted = msgspec.convert(table, settings, dec_hook=make_value)
    except msgspec.ValidationError as error:
        found = find_problems(table, settings, where)
        raise ConfigurationError(*(f"{place}: {problem}" for problem in found)) from error
    for warning in warnings:
        logger.warning("%s: %s", place, warning)
    return converted
