"""Reader of the store's configuration: TOML, or ClusterCockpit's config.json."""

from __future__ import annotations

import tomllib
from typing import Any

from msgspec import structs

from ccagent.config.conversion import convert
from ccagent.errors import ConfigurationError
from ccagent.stores.metrics.reference_config import convert_reference
from ccagent.stores.metrics.settings import StoreSettings, check_settings


def read_settings(path: str, changes: dict[str, Any] | None = None) -> StoreSettings:
    """Read a configuration: TOML, or the reference's JSON. Raise ConfigurationError.

    changes: values from the command line; they replace the file's.
    """
    try:
        with open(path, "rb") as file:
            text = file.read().decode()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not text in UTF-8") from error
    if text.lstrip().startswith("{"):
        found = convert_reference(text, path)
        return check_settings(_changed(found, changes), path)
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    return check_settings(_changed(convert(table, StoreSettings, "", place=path), changes), path)


def _changed(settings: StoreSettings, changes: dict[str, Any] | None) -> StoreSettings:
    if not changes:
        return settings
    metrics = settings.metrics | changes.get("metrics", {})
    return structs.replace(settings, **{**changes, "metrics": metrics})
