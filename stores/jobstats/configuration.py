"""Reading the jobstats store's configuration."""

from __future__ import annotations

import tomllib
from typing import Any

from msgspec import structs

from ccagent.config.conversion import convert
from ccagent.errors import ConfigurationError
from ccagent.stores.jobstats.settings import JobstatsStoreSettings, check_jobstats_settings


def read_jobstats_settings(path: str | None, changes: dict[str, Any]) -> JobstatsStoreSettings:
    """Read a file of TOML, if there is one. Raises ConfigurationError.

    changes: what the command line says instead.
    """
    settings = JobstatsStoreSettings()
    if path is not None:
        try:
            with open(path, "rb") as file:
                table: dict[str, Any] = tomllib.load(file)
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{path}: not text in UTF-8") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"{path}: {error}") from None
        settings = convert(table, JobstatsStoreSettings, "", place=path)
    # The one place of the data that the command line names replaces the other.
    if changes.keys() & {"data", "database"}:
        settings = structs.replace(settings, data="", database="")
    return check_jobstats_settings(
        structs.replace(settings, **changes), path if path is not None else "command line"
    )
