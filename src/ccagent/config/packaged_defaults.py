"""Defaults that packages install. They complete the configuration in /etc/ccagent."""

from __future__ import annotations

import os
from typing import Any

from ccagent.config.settings import as_table
from ccagent.errors import ConfigurationError

PACKAGED = "/usr/share/ccagent/conf.d"
"""Where packages install defaults, a file a package."""


def list_packaged(overriding: str) -> list[str]:
    """List the files of defaults in the order of their names.

    A file of the same name in the directory `overriding` replaces one of them. Raise
    ConfigurationError.
    """
    try:
        names = sorted(os.listdir(PACKAGED))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError(f"{PACKAGED}: {error.strerror}") from error
    return [
        os.path.join(PACKAGED, name)
        for name in names
        if name.endswith(".toml") and not os.path.lexists(os.path.join(overriding, name))
    ]


def complete(
    table: dict[str, Any],
    defaults: dict[str, Any],
    path: str,
    origins: dict[tuple[str, ...], str],
    where: tuple[str, ...] = (),
) -> None:
    """Add the keys of `defaults`, which stand in the file `path`, that a table does not have."""
    for key, value in defaults.items():
        full = (*where, key)
        if key not in table:
            table[key] = {} if _is_table(value) else value
            origins[full] = path
        if _is_table(value) and _is_table(table[key]):
            complete(table[key], as_table(value), path, origins, full)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)
