"""Settings from tables of TOML."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import msgspec

from ccagent.config.settings import Settings, as_table, make_value
from ccagent.errors import ConfigurationError

T = TypeVar("T", bound=Settings)


def convert(table: object, settings: type[T], where: str, *, place: str) -> T:
    """Fill `settings` from a table.

    `place` is what the user calls the source (a file's path), `where` the table's own key
    (`agents.sample`). Raises ConfigurationError naming place, key and reason of each problem.
    """
    if table != {} and not as_table(table):
        raise ConfigurationError(f"{place}: {where}: expected a table [{where}]")
    if not table:
        # msgspec would read the annotations of the type, which takes 1 ms.
        with suppress(TypeError):  # a key without a default
            return settings()
    try:
        return msgspec.convert(table, settings, dec_hook=make_value)
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{place}: {where}: not text in UTF-8") from error
    except msgspec.ValidationError:
        from ccagent.config.settings_problems import find_problems

        found = find_problems(as_table(table), settings, where)
        raise ConfigurationError(*(f"{place}: {problem}" for problem in found)) from None
