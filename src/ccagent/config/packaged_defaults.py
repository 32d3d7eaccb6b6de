"""Defaults installed by packages. They complete the configuration in /etc/ccagent."""

from __future__ import annotations

import os
from typing import Any

from ccagent.config.settings import as_table
from ccagent.errors import ConfigurationError

PACKAGED = "/usr/share/ccagent/conf.d"
"""Directory for the defaults of packages, one file per package."""


def list_packaged(overriding: str) -> list[str]:
    """Return the files of defaults, sorted by name.

    A file of the same name in the directory `overriding` replaces a file of defaults. Raise
    ConfigurationError if the directory can't be read.
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
    """Add missing keys to a table from `defaults`, the content of the file `path`."""
    for key, value in defaults.items():
        full = (*where, key)
        if key not in table:
            table[key] = {} if _is_table(value) else value
            origins[full] = path
        if _is_table(value) and _is_table(table[key]):
            complete(table[key], as_table(value), path, origins, full)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)
