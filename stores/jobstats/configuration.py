"""Reader of the jobstats store's configuration."""

from __future__ import annotations

import tomllib
from typing import Any

from msgspec import structs

from ccagent.config.conversion import convert
from ccagent.errors import ConfigurationError
from ccagent.stores.jobstats.settings import JobstatsStoreSettings, check_jobstats_settings


def read_jobstats_settings(path: str | None, changes: dict[str, Any]) -> JobstatsStoreSettings:
    """Read a TOML file, if a path is given. Raise ConfigurationError.

    changes: values from the command line; they replace the file's.
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
    # --data replaces a `database` of the file, and --database its `data`.
    if changes.keys() & {"data", "database"}:
        settings = structs.replace(settings, data="", database="")
    return check_jobstats_settings(
        structs.replace(settings, **changes), path if path is not None else "command line"
    )
