"""The file of keys set by `config` controls. They override the configuration files.

The file is below /run. A boot deletes it, and the configuration files are in effect again.
"""

from __future__ import annotations

import os
import tomllib
from typing import TYPE_CHECKING, Any

from ccagent.config.settings import as_table
from ccagent.controls.config_keys import OFF, check_overrides, with_overrides
from ccagent.controls.settings import OVERRIDES
from ccagent.errors import CcagentError, NotHereError, NotPermittedError, UnparsableError
from ccagent.log import logger
from ccagent.machine.trusted_file import read
from ccagent.service.private_directories import make_directory
from ccagent.service.private_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGEST = 256 * 1024


def read_overrides(path: str) -> dict[str, Any]:
    """Return the table in the file; an empty one without the file. Raise CcagentError."""
    try:
        _, content = read(path, path.lstrip("/"), _LARGEST)
    except NotHereError:
        return {}
    try:
        overrides = tomllib.loads(content.decode("utf-8"))
        check_overrides(overrides)
    except ValueError as error:
        raise UnparsableError(f"{path}: {error}") from error
    return overrides


def write_overrides(path: str, overrides: Mapping[str, Any]) -> None:
    """Write the file atomically. Every user may read it. Raise CcagentError."""
    from ccagent.config.defaults import toml

    lines = [f"{OFF} = {toml(overrides.get(OFF, []))}"]
    for name, table in as_table(overrides.get("agents")).items():
        lines.append(f"[agents.{toml(name)}]")
        lines += [f"{toml(key)} = {toml(value)}" for key, value in as_table(table).items()]
    try:
        make_directory(os.path.dirname(path), 0o755)
        replace_file(path, ("\n".join(lines) + "\n").encode(), 0o644)
    except OSError as error:
        raise NotPermittedError(f"{path}: {error.strerror}") from error


def apply_overrides(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table with the overrides. If they can't be read, log a warning and omit them."""
    path = str(as_table(table.get("controls")).get("overrides", OVERRIDES))
    try:
        return with_overrides(table, read_overrides(path))
    except CcagentError as error:
        logger.warning("overrides are not used: %s", error)
        return table
