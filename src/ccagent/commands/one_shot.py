"""The command `AGENT --once`: take one sample, then exit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ccagent import log
from ccagent.commands.options import load_configuration
from ccagent.errors import ConfigurationError
from ccagent.service.signals import allow_interrupts

if TYPE_CHECKING:
    from ccagent.commands.options import Options


def sample_once(
    agent: str,
    options: Options,
    *,
    verbosity: int = 0,
    assignments: tuple[str, ...] = (),
    is_dry: bool = False,
) -> int:
    """Sample once with an agent and return the exit status of the command.

    `is_dry`: print the messages for each sink, and deliver nothing.
    """
    log.configure(verbosity, is_brief=True)
    if options.form == "table" and (options.sinks or is_dry):
        other = "--dry-run" if is_dry else "--sink"
        raise ConfigurationError(f"--format table and {other} exclude each other: people read it")
    configuration = load_configuration(options, agent=agent, assignments=assignments)
    settings = configuration.settings
    log.configure(verbosity, settings.log_level, settings.log_format, is_brief=True)
    if is_dry:
        from ccagent.commands.dry_run import print_messages

        print_messages(configuration, agent)
        return 0
    allow_interrupts()  # not earlier: an interrupt during its import would crash msgspec
    if _is_for_people(options):
        from ccagent.views.table.printing import print_table

        return 0 if print_table(configuration, agent) else 1
    from ccagent.commands.once import run_once

    return 0 if run_once(configuration, agent) else 1


def _is_for_people(options: Options) -> bool:
    """Return whether to print a table: if requested, or on a terminal without other requests."""
    if options.form is not None:
        return options.form == "table"
    if options.sinks or options.path is not None:
        return False
    try:
        return sys.stdout.isatty()
    except (AttributeError, ValueError):  # closed
        return False
