"""Files for packages: man pages, completions, a configuration file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ccagent.commands.generate import completion, manual, manual_configuration
from ccagent.config.defaults import template
from ccagent.config.registry import AGENTS, TRANSPORTS
from ccagent.errors import ConfigurationError, NotPermittedError
from ccagent.service.private_directories import make_directory
from ccagent.service.private_files import replace_file

if TYPE_CHECKING:
    import click


def generate(program: click.Group, directory: str) -> list[str]:
    """Write all files below a directory, with `share` as below /usr. Return their paths.

    The files depend only on this version and the date of the man pages: SOURCE_DATE_EPOCH, or
    today. They do not contain installed third-party agents. Raise ConfigurationError on failure.
    """
    date = _date()
    files = {
        "ccagent.toml": template(AGENTS, TRANSPORTS),
        "share/man/man1/ccagent.1": manual.page(program, date),
        "share/man/man5/ccagent.toml.5": manual_configuration.page(date),
        **{
            f"share/{place}": completion.script(program, shell)
            for shell, place in completion.FILES.items()
        },
    }
    written: list[str] = []
    for place, text in files.items():
        path = Path(directory) / place
        try:
            make_directory(str(path.parent), 0o755)
            replace_file(str(path), text.encode(), 0o644)
        except NotPermittedError as error:
            raise ConfigurationError(str(error)) from error
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}") from error
        written.append(str(path))
    return written


def _date() -> str:
    """Return the date of the man pages. Source: reproducible-builds.org, SOURCE_DATE_EPOCH."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "") or str(int(time.time()))
    if not epoch.isdecimal() or len(epoch) > 11:
        raise ConfigurationError(f"SOURCE_DATE_EPOCH: {epoch!r} is not a number of seconds")
    return time.strftime("%Y-%m-%d", time.gmtime(int(epoch)))
