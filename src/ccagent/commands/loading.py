"""Loading of the configuration and the log of a command, and the start of the daemon."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ccagent import log
from ccagent.service.signals import CLOSED_PIPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.commands.command_options import Common
    from ccagent.config.configuration import Configuration


def load(common: Common, *, needs_file: bool = False) -> Configuration:
    """Read the configuration, and configure the log with it."""
    from ccagent.commands.options import load_configuration

    configure_log(common.verbosity)
    configuration = load_configuration(common.options, needs_file=needs_file)
    configure_log(common.verbosity, configuration)
    return configuration


def configure_log(verbosity: int, configuration: Configuration | None = None) -> None:
    """Configure the log from `-v` and, if given, from the configuration."""
    if configuration is None:
        log.configure(verbosity)
    else:
        log.configure(
            verbosity, configuration.settings.log_level, configuration.settings.log_format
        )


def run_daemon(load: Callable[[], Configuration], *, serves_status: bool) -> None:
    """Run the daemon until a signal ends it. `load` reads the configuration, also for reloads."""
    from ccagent.daemon.daemon import Daemon
    from ccagent.machine.clock import Clock

    daemon = Daemon(load, Clock(), serves_status=serves_status)
    daemon.handle_signals()
    daemon.run()
    if daemon.is_output_closed:
        sys.exit(CLOSED_PIPE)
