"""The commands `ccagent migfra`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ccagent.config.command_options import HelpfulGroup, add_file_options
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from ccagent.config.command_options import Common


@click.group(cls=HelpfulGroup)
def migfra() -> None:
    """Start, stop and migrate virtual machines for a FAST scheduler."""


@migfra.command()
@add_file_options
def run(common: Common) -> None:
    """Run the migration framework until SIGTERM. SIGHUP reads its policy again.

    Without --config it reads /etc/ccagent/ccagent.toml.
    """
    from ccagent.machines.service import run_service

    if common.options.is_without_file:
        raise ConfigurationError("migfra run needs a configuration file")
    run_service(common.options.path, common.verbosity)
